"""Predictions checked: full steps under plans, compiled and run in turn on the real devices."""

from __future__ import annotations

from collections.abc import Mapping

from cfp.plan import Plan
from cfp.plan.evidence import MeasuredStep
from cfp.profile.campaign import Campaign
from cfp.profile.confidence import median_interval
from cfp.profile.full_step import measure_steps
from cfp.profile.measurement import Measurement

ENOUGH_S = 2.0  # of runs of each step: on them the choice rests
NO_TIME = "the budget left no time for it"


def audit(campaign: Campaign, plans: Mapping[str, Plan]) -> dict[str, MeasuredStep]:
    """Measures the step under every plan; all of them are of one mesh and know their step. Those
    that a deadline leaves no time for are `failed`."""
    bounds = {name: plan.known("audit") for name, plan in plans.items()}
    steps = {name: (bound.analysis, bound.layouts) for name, bound in bounds.items()}
    mesh = next(iter(plans.values())).mesh
    found = measure_steps(campaign, mesh, steps, enough_s=ENOUGH_S)
    return {
        name: _step(
            name, found.get(name), None if plan.predicted is None else plan.predicted.time_s
        )
        for name, plan in plans.items()
    }


def _step(name: str, found: Measurement | None, predicted_s: float | None) -> MeasuredStep:
    if found is None:
        return MeasuredStep(name, predicted_s, 0.0, 0.0, 0.0, 0, NO_TIME)
    if found.failed is not None or found.memory is None:
        return MeasuredStep(name, predicted_s, 0.0, 0.0, 0.0, 0, found.failed or "no memory figure")
    runs_s = tuple(run_s / found.drift for run_s in found.runs_s)
    low_s, high_s = median_interval(runs_s)
    needs = found.memory.total_bytes
    return MeasuredStep(name, predicted_s, found.usual_s, low_s, high_s, needs, runs_s=runs_s)
