"""Plans measured against each other: full steps, run in turn, with how sure the figures are.

Every round runs every plan, so all see the same machine, in another order each time. A step that
takes less than half a second runs twice in its turn, and the second run counts: in training it
follows itself. The ratio of two plans is the median over rounds of the ratio of their times; they
tie where 1 is in its 95 % interval.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jax.sharding import Mesh

from cfp.cluster import Team
from cfp.errors import CfpError
from cfp.plan import Plan, auto_mesh
from cfp.profile import Effort, Progress
from cfp.profile.api import open_campaign
from cfp.profile.confidence import median_interval, ratios
from cfp.profile.full_step import measure_steps
from cfp.profile.measurement import Measurement
from cfp.profile.together import together

ROUNDS = 15


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """`ratio` is to the fastest plan. `compute_s` and `communication_s` are None where the profiler
    did not tell. `failed` says why a plan did not run; then the rest is 0."""

    name: str
    time_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    compute_s: float | None = None
    communication_s: float | None = None
    memory_bytes: int = 0
    failed: str | None = None

    @property
    def ties(self) -> bool:
        """With the fastest plan."""
        return self.failed is None and self.ratio_low <= 1.0 <= self.ratio_high


@dataclass(frozen=True, slots=True)
class Comparison:
    """Fastest first; those that did not run last."""

    rounds: int
    plans: tuple[ComparedPlan, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "plans": [{**asdict(one), "ties": one.ties} for one in self.plans],
        }


def compare(
    step: Callable[..., Any],
    *args: Any,
    mesh: Mesh,
    plans: Mapping[str, Plan | str],
    rounds: int = ROUNDS,
    isolate: bool | None = None,
    progress: Progress | None = None,
    team: Team | None = None,
) -> Comparison:
    """Measures the step under every plan, afresh. Text in place of a plan says why there is none.

    On a mesh of several processes every process calls this alike; `team` as of `cfp.plan`.

    >>> cfp.compare(step, *args, mesh=mesh, plans={"ours": plan, "fsdp": fsdp_plan})
    """
    mesh = auto_mesh(mesh)
    if rounds < 1:
        raise CfpError(f"`rounds` is {rounds}: give one or more.")
    bound: dict[str, Plan] = {}
    for name, plan in plans.items():
        if isinstance(plan, Plan):
            if plan.mesh != mesh:
                raise CfpError(
                    f"The plan `{name}` is for a mesh of {dict(plan.mesh.shape)}, not "
                    f"{dict(mesh.shape)}: compare plans of one mesh."
                )
            bound[name] = plan.bind(step, *args)
    if not bound:
        raise CfpError("`plans` has no plan to measure: give at least one.")
    steps = {name: (found.analysis, found.layouts) for name, found in _bounds(bound).items()}
    effort = Effort(warmups=3, repeats=rounds)

    def decide(team: Team | None) -> Comparison:
        with (
            tempfile.TemporaryDirectory(prefix="cfp-compare-") as folder,
            open_campaign(
                mesh, cache_dir=folder, isolate=isolate, effort=effort, progress=progress, team=team
            ) as campaign,
        ):
            found = measure_steps(campaign, mesh, steps)
        failed = [ComparedPlan(n, failed=why) for n, why in plans.items() if isinstance(why, str)]
        return Comparison(rounds, (*_ranked(found), *failed))

    return together(mesh, team, isolate, decide)


def _bounds(plans: Mapping[str, Plan]) -> dict[str, Any]:
    return {name: plan.known("compare") for name, plan in plans.items()}


def _ranked(found: Mapping[str, Measurement]) -> list[ComparedPlan]:
    ran = [name for name, one in found.items() if one.failed is None]
    ran.sort(key=lambda name: statistics.median(found[name].runs_s))
    rows = [_compared(name, found[name], found[ran[0]]) for name in ran]
    failed = [(name, one.failed) for name, one in found.items() if one.failed is not None]
    return rows + [ComparedPlan(name, failed=why) for name, why in failed]


def _compared(name: str, one: Measurement, best: Measurement) -> ComparedPlan:
    to_best = ratios(one.runs_s, best.runs_s)
    low_s, high_s = median_interval(one.runs_s)
    ratio_low, ratio_high = median_interval(to_best)
    shares = one.split()
    return ComparedPlan(
        name=name,
        time_s=statistics.median(one.runs_s),
        low_s=low_s,
        high_s=high_s,
        ratio=statistics.median(to_best),
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        compute_s=None if shares is None else shares.compute_s,
        communication_s=None if shares is None else shares.transfer_s + shares.waiting_s,
        memory_bytes=0 if one.memory is None else one.memory.total_bytes,
    )
