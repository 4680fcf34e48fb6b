"""What the benchmarks of planning share: models to plan, and full steps of plans by option."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from rich.console import Console

from cfp import Analysis, Plan, analyze
from cfp.cluster import Team
from cfp.devices import make_mesh
from cfp.models import config, make_step
from cfp.plan.assemble import assemble_plan
from cfp.planning.proposals import Proposals
from cfp.profile import Option
from cfp.profile.api import Manner, open_campaign
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.budget import CHOOSING_S
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.full_step import measure_steps
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.rounds import USUAL
from cfp.profile.profiler import measure_segments
from cfp.profile.programs.find_kinds import find_kinds
from cfp.report import TerminalProgress
from cfp.search import Point
from cfp.segments.keep import Keep

MODELS = ("bert", "gpt", "moe", "llama")
SHAPE: dict[str, Any] = {"seq": 32}  # of every model, size `small`
LAYERS = 3
EVEN = ("moe",)  # has dense and expert layers in turn: one layer more
AT_ONCE = 10  # full steps that run in turn


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model at a batch size on a mesh of virtual CPU devices. Its step donates its state."""

    model: str
    batch: int
    mesh: Mesh
    step: Any
    args: tuple[Any, ...]
    analysis: Analysis


def make_case(
    model: str, batch: int, shape: Sequence[int], *, size: str = "small", **options: Any
) -> Case:
    mesh = make_mesh(shape, "cpu")
    sizes = {"layers": LAYERS + (model in EVEN), **SHAPE, **options}
    step, args = make_step(config(model, size, batch=batch, **sizes), abstract=True)
    step = jax.jit(step, donate_argnums=0)
    return Case(model, batch, mesh, step, args, analyze(step, *args, mesh_shape=tuple(shape)))


class Bench:
    """`with Bench(case, store) as bench:` has the case's segments measured, and measures full steps
    of any plan: one option per segment, by number. With a `team`, whose leader this is, all its
    processes measure."""

    def __init__(self, case: Case, store: Path, wave: int, team: Team | None = None) -> None:
        self.case = case
        self._team = team
        self._store = store
        self._effort = replace(USUAL, wave=wave)

    def __enter__(self) -> Bench:
        case = self.case
        self.progress = TerminalProgress(Console(stderr=True))
        self._opened = open_campaign(
            case.mesh,
            cache_dir=self._store,
            manner=Manner(effort=self._effort, progress=self.progress),
            team=self._team,
        )
        self.campaign: Campaign = self._opened.__enter__()
        self.profile = measure_segments(self.campaign, case.analysis, case.mesh, Scope())
        self.proposals = Proposals(
            case.step,
            case.analysis,
            case.mesh,
            self.profile,
            pins={},
            pinned={},
        )
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def point(self, choice: Sequence[int]) -> Point:
        problem = self.proposals.composition.problem
        return Point(problem.time_s(choice), problem.memory_bytes(choice), tuple(choice))

    def alike(self, options: Sequence[int]) -> tuple[int, ...]:
        """Returns the choice that gives every segment its kind's option."""
        return tuple(options[kind] for kind in self.proposals.composition.kinds)

    def options(self, kind: int) -> list[int]:
        """Returns the options that were measured to the end."""
        composition, costs = self.proposals.composition, self.profile.segments[kind].costs
        at = composition.kinds.index(kind)
        every: tuple[Option, ...] = composition.options[at]
        return [i for i, option in enumerate(every) if not costs[option].rough]

    def assemble(self, options: Sequence[Option]) -> Plan:
        """Returns a plan by one option per segment, measured or not."""
        case, interfaces = self.case, self.proposals.profile.interfaces
        return assemble_plan(case.step, case.analysis, case.mesh, interfaces, options, name="way")

    def step_times(self, plans: Mapping[str, Plan]) -> dict[str, float]:
        """Returns seconds of the step under each plan that runs."""
        found: dict[str, float] = {}
        names = list(plans)
        for start in range(0, len(names), AT_ONCE):
            some = {name: plans[name] for name in names[start : start + AT_ONCE]}
            measured = self._measure(some, 0.0)
            found |= {name: m.usual_s for name, m in measured.items() if m.failed is None}
        return found

    def full_steps(self, points: Sequence[Point]) -> list[tuple[Plan, Measurement]]:
        """Returns the plan of each, and its step."""
        found: list[tuple[Plan, Measurement]] = []
        for start in range(0, len(points), AT_ONCE):
            some = points[start : start + AT_ONCE]
            plans = {self.proposals.show(p): self.proposals.make(p).plan for p in some}
            measured = self._measure(plans, CHOOSING_S)
            found += [(plans[name], measured[name]) for name in map(self.proposals.show, some)]
        return found

    def _measure(self, plans: Mapping[str, Plan], enough_s: float) -> dict[str, Measurement]:
        bounds = {name: plan.known("bench") for name, plan in plans.items()}
        steps = {name: (b.analysis, b.layouts) for name, b in bounds.items()}
        return measure_steps(self.campaign, self.case.mesh, steps, enough_s=enough_s)


def checkpointed(plan: Plan) -> Plan:
    """Returns the plan with every segment keeping only what comes in, as with `jax.checkpoint`
    around each."""
    bound = plan.known("bench")
    again = [
        level.at(place.equations[0])
        for kind in find_kinds(bound.analysis)
        if (level := kind.levels.get(Keep.INPUTS) or kind.levels.get(Keep.CONTRACTIONS))
        for place in kind.places
    ]
    layouts = replace(bound.layouts, again=tuple(again))
    return replace(plan, bound=replace(bound, layouts=layouts, compiled={}))


def splits_of(plan: Plan) -> str:
    """Returns how the plan splits its segments; those that are split alike are counted together."""
    assert plan.evidence is not None
    counts = Counter(segment.splits for segment in plan.evidence.segments)
    return "; ".join(f"{count}x {splits}" for splits, count in counts.items())
