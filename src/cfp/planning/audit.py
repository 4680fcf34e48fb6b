"""Predictions checked: full steps under plans, compiled and run in turn on the real devices, and
what they show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cfp.analysis import Analysis
from cfp.layouts import Layouts, auto_mesh
from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import MeasuredStep
from cfp.plan.measured_kinds import short_sent
from cfp.plan.plan import learn_collectives
from cfp.profile.measure.budget import CHOOSING_S
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.confidence import EQUIVALENT, Verdict, median_interval
from cfp.profile.measure.full_step import ALONE, confirm_steps, measure_steps
from cfp.profile.measure.measurement import Measurement, Provenance
from cfp.profile.measure.sent import ProgramSends, sent_by

NO_TIME = "the budget left no time for it"
FAR = 1.5  # times the mesh's step: one device that takes so much longer is clearly slower


def audit(campaign: Campaign, plans: Mapping[str, Plan]) -> dict[str, MeasuredStep]:
    """Measures the step under every plan, to choose one; all of them are of one mesh and know their
    step. Plans that a deadline leaves no time for are left out."""
    mesh = auto_mesh(next(iter(plans.values())).mesh)
    found = measure_steps(campaign, mesh, _steps(plans), enough_s=CHOOSING_S)
    return _audited(campaign, found, plans)


def confirm(
    campaign: Campaign, plans: Mapping[str, Plan], *, takes_s: float, limit: int | None
) -> dict[str, MeasuredStep]:
    """Measures the step under the chosen plan, the first, and under others beside it, on rounds
    that had no part in the choice; and on one device alone, where that may be faster than the
    `takes_s` of the chosen plan and fits in `limit`."""
    first = next(iter(plans.values()))
    mesh = auto_mesh(first.mesh)
    why_not = _why_not_alone(first, takes_s, limit, shared=campaign.machine.platform == "cpu")
    alone_s = None if why_not is not None or mesh.size == 1 else FAR * takes_s
    found = confirm_steps(campaign, mesh, _steps(plans), alone_s=alone_s)
    steps = _audited(campaign, found, plans)
    if mesh.size > 1:
        alone = MeasuredStep(ALONE, None, left_out=why_not)
        steps[ALONE] = alone if why_not is not None else _alone(found.get(ALONE), limit)
    return steps


def _audited(
    campaign: Campaign, found: Mapping[str, Measurement], plans: Mapping[str, Plan]
) -> dict[str, MeasuredStep]:
    error = 0.0 if campaign.network is None else campaign.network.error or 0.0
    return {name: _step(name, found.get(name), plan, error) for name, plan in plans.items()}


def what_they_show(
    steps: Sequence[MeasuredStep], confirmed: Sequence[MeasuredStep]
) -> Iterator[str]:
    """Says which plans are faster than the chosen one, the first of both, as fast, or not told
    apart from it; and that the mesh is no use where one device alone is faster."""
    words = {
        Verdict.FASTER: "Faster than this plan",
        Verdict.TIE: f"As fast, within {EQUIVALENT - 1:.0%}",
        Verdict.UNTOLD: "Not told apart from this plan",
        Verdict.LEVEL: "Level with this plan, within the error of replays",
    }
    named: dict[Verdict, list[str]] = {verdict: [] for verdict in words}
    for measured in (steps, confirmed):
        for step in measured[1:]:
            found = step.beside(measured[0])
            verdict = found.verdict
            if step.name == ALONE and verdict is Verdict.FASTER and found.ratio is not None:
                yield (
                    f"One device alone is faster than this mesh, {1 / found.ratio:.2f} times: the "
                    "step is too small to be split for its speed. Give it a larger batch, or run "
                    "it on one device."
                )
            elif step.runs_s and measured[0].runs_s and verdict in named:
                named[verdict].append(step.name)
    for verdict, names in named.items():
        if names:
            yield f"{words[verdict]}: {', '.join(names)}."


def _why_not_alone(plan: Plan, takes_s: float, limit: int | None, *, shared: bool) -> str | None:
    """Returns why the step is not run on one device alone, by what is known before; None if it is.
    Devices that have cores of their own (not `shared`) together compute what one would have to."""
    graph = plan.known("audit").analysis.graph
    values = [graph.values[value] for value in graph.inputs]
    needs = sum(math.prod(value.shape) * getattr(value.dtype, "itemsize", 0) for value in values)
    if limit is not None and needs > limit:
        return f"its arguments need {bytes_text(needs)}, more than the memory limit"
    predicted = plan.predicted
    if not shared and predicted is not None and predicted.compute_s is not None:
        about_s = plan.mesh.size * predicted.compute_s
        if about_s > FAR * takes_s:
            return f"it would compute about {about_s / takes_s:.0f} times as long"
    return None


def _alone(found: Measurement | None, limit: int | None) -> MeasuredStep:
    step = _step(ALONE, found, None)
    if found is not None and found.stopped_early:
        why = f"given up as clearly slower, at {found.at_least_s:.3g} s a step"
        return MeasuredStep(ALONE, None, left_out=why)
    if limit is not None and step.memory_bytes is not None and step.memory_bytes > limit:
        why = f"it needs {bytes_text(step.memory_bytes)}, more than the memory limit"
        return MeasuredStep(ALONE, None, left_out=why)
    return step


def _steps(plans: Mapping[str, Plan]) -> dict[str, tuple[Analysis, Layouts]]:
    bounds = {name: plan.known("audit") for name, plan in plans.items()}
    return {name: (bound.analysis, bound.layouts) for name, bound in bounds.items()}


def _step(
    name: str, found: Measurement | None, plan: Plan | None, error: float = 0.0
) -> MeasuredStep:
    """Returns a measured step; `error` is that of the links, relative."""
    predicted = None if plan is None else plan.predicted
    predicted_s = None if predicted is None else predicted.time_s
    if found is None:
        return MeasuredStep(name, predicted_s, left_out=NO_TIME)
    if found.failed is not None or found.memory is None:
        return MeasuredStep(name, predicted_s, failed=found.failed or "no memory figure")
    runs_s = tuple(run_s / found.drift for run_s in found.runs_s)
    low_s, high_s = median_interval(runs_s)
    sent = None
    if plan is not None and found.collectives is not None:
        learn_collectives(plan, found.collectives)
        graph = plan.known("audit").analysis.graph
        sent = short_sent(sent_by([ProgramSends(graph, 1.0, found.collectives)]))
    shares = found.split()
    step = MeasuredStep(
        name,
        predicted_s,
        found.usual_s,
        low_s,
        high_s,
        found.memory.total_bytes,
        runs_s=runs_s,
        sent=sent,
        compute_s=None if shares is None else shares.compute_s,
        exposed_s=None if shares is None else shares.transfer_s + shares.waiting_s,
    )
    if found.provenance is not Provenance.REPLAYED:
        return step
    sent_s, exposed_s = found.communication_s / found.drift, found.exposed_s / found.drift
    return replace(
        step,
        provenance=found.provenance,
        communication_s=sent_s,
        compute_s=step.time_s - exposed_s,
        exposed_s=exposed_s,
        error_s=error * sent_s,
    )
