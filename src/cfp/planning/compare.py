"""Plans measured against each other: full steps, run in turn, with how sure the figures are.

Every round runs every plan, so all see the same machine, in another order each time. A step that
takes less than half a second runs twice in its turn, and the second run counts: in training it
follows itself. The ratio of two plans is the median over rounds of the ratio of their times; what
it shows is judged as everywhere (`profile.measure.confidence`): slower, a tie, or not told apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cfp.cluster import Team
from cfp.cluster.wire import decode, encode
from cfp.errors import CfpError
from cfp.layouts import AnyMesh, auto_mesh
from cfp.links import Network
from cfp.links.file import Spec
from cfp.plan import Plan
from cfp.plan.evidence import Links
from cfp.planning.options import Options
from cfp.profile import Effort, Progress
from cfp.profile.api import Manner, check_network, open_campaign
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.confidence import Verdict, judge, judge_replays, median_interval
from cfp.profile.measure.full_step import measure_steps
from cfp.profile.measure.measurement import Measurement, Provenance
from cfp.profile.runners.scratch import scratch_folder
from cfp.profile.runners.shared_decision import decide_together


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """`runs_s` are one of each round. `ratio` is to the fastest plan, `verdict` what it shows;
    `ratio_low` and `ratio_high` are None where rounds are too few to bound it. `compute_s` and
    `communication_s` are None where the profiler did not tell. `failed` says why a plan did not
    run; then nothing else is known. `predicted_s` is what a plan expects of itself."""

    name: str
    time_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    ratio: float = 0.0
    ratio_low: float | None = None
    ratio_high: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    memory_bytes: int = 0
    failed: str | None = None
    verdict: Verdict = Verdict.UNTOLD
    runs_s: tuple[float, ...] = ()
    provenance: Provenance = Provenance.MEASURED
    predicted_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; a plan that did not run has null for all but its name and the
        reason."""
        known = ("name", "failed")
        found = asdict(self)
        return {k: v if self.failed is None or k in known else None for k, v in found.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Fastest first; those that did not run last. `links` are what steps were replayed with, on a
    mesh that is not there."""

    rounds: int
    plans: tuple[ComparedPlan, ...]
    links: Links | None = None

    def to_json(self) -> dict[str, Any]:
        links = None if self.links is None else asdict(self.links)
        plans = [one.to_json() for one in self.plans]
        return {"rounds": self.rounds, "links": links, "plans": plans}


def compare(
    step: Callable[..., Any],
    *args: Any,
    mesh: AnyMesh,
    plans: Mapping[str, Plan | str],
    rounds: int = ROUNDS,
    isolate: bool | None = None,
    progress: Progress | bool | None = None,
    team: Team | None = None,
    links: Spec | None = None,
) -> Comparison:
    """Measures the step under every plan, afresh. Text in place of a plan says why there is none.

    On a mesh of several processes every process calls this alike; `progress` and `team` as of
    `cfp.plan`, and so are the `links` of a mesh that is not there, on which steps are replayed.

    >>> cfp.compare(step, *args, mesh=mesh, plans={"ours": plan, "fsdp": fsdp_plan})
    """
    from cfp.report.progress import shown  # reads comparisons, so it is a later room

    mesh = auto_mesh(mesh)
    network = Options(links=links).network(mesh)
    check_network(mesh, network)
    if rounds < 1:
        raise CfpError(f"`rounds` is {rounds}: give one or more.")
    bound = {
        name: plan.bind(step, *args)
        for name, plan in plans.items()
        if isinstance(plan, Plan) and _is_for(mesh, name, plan)
    }
    if not bound:
        raise CfpError("`plans` has no plan to measure: give at least one.")
    reasons = {name: why for name, why in plans.items() if isinstance(why, str)}
    question = _Question(mesh, bound, reasons, rounds, isolate, network)

    def decide(team: Team | None) -> Comparison:
        with shown(progress) as telling:
            return question.answer(telling, team)

    found: Comparison = decide_together(
        mesh,
        team,
        isolate,
        decide,
        pack=encode,
        unpack=lambda data: decode(data, Comparison),
    )
    return found


@dataclass(frozen=True, slots=True)
class _Question:
    """What is compared: plans bound to the step, and why there is none in place of others."""

    mesh: AnyMesh
    plans: Mapping[str, Plan]
    reasons: Mapping[str, str]
    rounds: int
    isolate: bool | None
    network: Network | None

    def answer(self, telling: Progress, team: Team | None) -> Comparison:
        """Measures the plans, in the process that decides. Nothing that was measured before
        counts."""
        bound = {name: plan.known("compare") for name, plan in self.plans.items()}
        steps = {name: (one.analysis, one.layouts) for name, one in bound.items()}
        network = self.network
        with (
            scratch_folder("compare") as folder,
            open_campaign(
                self.mesh,
                cache_dir=folder,
                isolate=self.isolate,
                manner=Manner(effort=Effort(warmups=3, repeats=self.rounds), progress=telling),
                team=team,
                network=network,
            ) as campaign,
        ):
            found = measure_steps(campaign, self.mesh, steps)
            used = None if network is None else Links.of(network, campaign.machine.stand_ins)
        failed = [ComparedPlan(name, failed=why) for name, why in self.reasons.items()]
        ranked = _ranked(found, 0.0 if network is None else network.error or 0.0)
        said = [replace(one, predicted_s=_predicted_s(self.plans[one.name])) for one in ranked]
        return Comparison(self.rounds, (*said, *failed), used)


def _is_for(mesh: AnyMesh, name: str, plan: Plan) -> bool:
    """Raises where a plan is for another mesh."""
    if auto_mesh(plan.mesh) != mesh:
        raise CfpError(
            f"The plan `{name}` is for a mesh of {dict(plan.mesh.shape)}, not "
            f"{dict(mesh.shape)}: compare plans of one mesh."
        )
    return True


def _predicted_s(plan: Plan) -> float | None:
    return None if plan.predicted is None else plan.predicted.time_s


def _ranked(found: Mapping[str, Measurement], error: float) -> list[ComparedPlan]:
    """Returns the plans that ran, fastest first, and the others; `error` is that of the links."""
    ran = [name for name, one in found.items() if one.failed is None]
    ran.sort(key=lambda name: statistics.median(found[name].runs_s))
    rows = [_compared(name, found[name], found[ran[0]], error) for name in ran]
    failed = [(name, one.failed) for name, one in found.items() if one.failed is not None]
    return rows + [ComparedPlan(name, failed=why) for name, why in failed]


def _compared(name: str, one: Measurement, best: Measurement, error: float) -> ComparedPlan:
    error_s = error * max(one.communication_s, best.communication_s)
    if Provenance.REPLAYED in (one.provenance, best.provenance):
        found = judge_replays(one.usual_s, best.usual_s, error_s)
    else:
        found = judge(one.runs_s, best.runs_s)
    assert found.ratio is not None
    low_s, high_s = median_interval(one.runs_s)
    shares = one.split()
    return ComparedPlan(
        name=name,
        time_s=statistics.median(one.runs_s),
        low_s=low_s,
        high_s=high_s,
        ratio=found.ratio,
        ratio_low=found.low,
        ratio_high=found.high,
        compute_s=None if shares is None else shares.compute_s,
        communication_s=None if shares is None else shares.transfer_s + shares.waiting_s,
        memory_bytes=0 if one.memory is None else one.memory.total_bytes,
        verdict=found.verdict,
        runs_s=one.runs_s,
        provenance=one.provenance,
    )
