"""Stage 4: measures the distinct segments of a step and the reshardings between them.

what starting a program takes              Campaign.set_overhead
one option of every segment                so that there is a plan at any moment
the options that may be best               Explorer, or all of them
reshardings                                between the fastest of them: no plan has them without
training state split further               of the fastest option; where memory counts, of several
reshardings                                every pair of layouts at a boundary
the fastest options alone                  of segments measured as two in a row
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.blocks.contraction import flops
from cfp.layouts import Layout, Layouts
from cfp.layouts.state import State
from cfp.profile import full_step
from cfp.profile.boundary import Crossing, find_crossings
from cfp.profile.campaign import Campaign
from cfp.profile.factors import OptionExplorer
from cfp.profile.kinds import Kind, Option, find_kinds
from cfp.profile.ledger import Ledger
from cfp.profile.machine import Machine
from cfp.profile.profile import Profile
from cfp.profile.progress import Progress
from cfp.profile.requests import (
    Resharding,
    cut_requests,
    idle_request,
    resharding_request,
)
from cfp.profile.runner import Runner
from cfp.profile.scope import Scope
from cfp.profile.states import measure_states, memory_counts
from cfp.profile.store import Store
from cfp.profile.turns import Effort, OutOfTime

IDLE = (2, 64)  # arguments of the programs that do nothing
BATCH = 8  # options asked of an explorer at once
HURRIED = 4  # with a budget, of all explorers: what was measured soon steers what is
SMALL = 16  # reshardings compiled and run in turn: next to nothing each
LEADING = 3  # layouts at a boundary between which reshardings are measured while options are
LAID_OUT = 64  # options laid out at once where all are measured
LEFT = 0.3  # of the budget, at the least, for the full steps that follow
LEFT_AT_MOST = 0.5
EXPLORED = 0.8  # of the rest, at the most, is over when exploring options ends
RESOLUTION_S = 1e-6  # less than starting a program varies: nothing is told to be faster
ALONE = 2  # options of a segment that are measured alone, besides two in a row


def measure(
    analysis: Analysis,
    mesh: Mesh,
    runner: Runner,
    store: Store,
    *,
    scope: Scope,
    effort: Effort,
    progress: Progress,
) -> Profile:
    """Measures what the store does not have. The runner is the caller's to close."""
    campaign = new_campaign(Machine.of(mesh), runner, store, effort, progress)
    return measure_segments(campaign, analysis, mesh, scope)


def new_campaign(
    machine: Machine, runner: Runner, store: Store, effort: Effort, progress: Progress
) -> Campaign:
    """For programs on this machine, without a deadline."""
    overlap = machine.platform != "cpu"
    return Campaign(runner, store, machine, effort, progress, overlap, math.inf)


def measure_segments(campaign: Campaign, analysis: Analysis, mesh: Mesh, scope: Scope) -> Profile:
    """Measures with a campaign that may have measured other things before. Its overhead, anchor
    and deadline are set, and stay."""
    return _Profiler(analysis, mesh, campaign, scope).run()


@dataclass
class _Profiler:
    analysis: Analysis
    mesh: Mesh
    campaign: Campaign
    scope: Scope
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = time.monotonic()
        self.machine = self.campaign.machine
        self.kinds = find_kinds(self.analysis, self.scope.outer)
        self.crossings: tuple[Crossing, ...] = find_crossings(self.analysis, self.kinds)
        self._leave(0.0)  # until there is a plan: without one nothing follows
        self.ledger = Ledger(self.campaign, self.mesh, self.kinds, self.crossings)
        self.finished = [False] * len(self.kinds)
        self.tight = False  # memory counts

    def run(self) -> Profile:
        stages = [
            ("what starting a program takes", self._overhead),
            ("the first option of every segment", self._first),
            ("reshardings", self._reshard),
            ("options that may be faster", self._explore),
            ("reshardings", self._reshard_leading),
            ("training state split further", self._states),
            ("reshardings", self._reshard),
            ("the fastest options alone", self._alone),
        ]
        for i, (name, stage) in enumerate(stages):
            try:
                stage()
            except OutOfTime:
                self.missing.append(name)
                if stage == self._first:  # nothing to go on with
                    self.missing += [later for later, _ in stages[i:]]
                    break
        self.campaign.settle()
        return self._profile()

    def _overhead(self) -> None:
        few, many = (idle_request(self.machine, self.mesh, count) for count in IDLE)
        self.campaign.set_overhead(few, many)
        largest = max(self.kinds, key=_work)
        self.campaign.set_anchor(self.ledger.ask(largest, _first(largest))[0])

    def _first(self) -> None:
        self.ledger.measure((kind, _first(kind)) for kind in self.kinds)

    def _leave(self, share: float) -> None:
        """So much of the budget to what follows."""
        budget_s = math.inf if self.scope.budget_s is None else self.scope.budget_s
        self.campaign.deadline = self.start + (1 - share) * budget_s

    def _full_step_s(self) -> float:
        """What measuring one will take, as far as the first option of every segment tells."""
        step_s = compile_s = 0.0
        for kind in self.kinds:
            happens = len(self.analysis.distinct_segments[kind.index].occurrences)
            step_s += self._takes_s(kind, _first(kind))
            in_a_row = 1 if kind.chained is None else 2
            for request in self.ledger.ask(kind, _first(kind)):
                compile_s += happens * self.campaign.known[request.key].compile_s / in_a_row
        return full_step.runs(step_s) * step_s + compile_s

    def _explore(self) -> None:
        """Leaves some of the budget for full steps, and for what else is measured of the best
        options."""
        if self.scope.budget_s is not None and self.scope.full_steps:
            needs = self.scope.full_steps * self._full_step_s() / self.scope.budget_s
            self._leave(min(max(needs, LEFT), LEFT_AT_MOST))
        end = self.campaign.deadline
        self.campaign.deadline = self.start + EXPLORED * (end - self.start)
        try:
            self._explore_options()
        finally:
            self.campaign.deadline = end

    def _explore_options(self) -> None:
        if self.scope.exhaustive:
            sample = self.scope.sample
            for kind in self.kinds:
                options = iter(_all(kind, sample))
                while some := list(itertools.islice(options, LAID_OUT)):
                    self.ledger.measure((kind, option) for option in some)
            self.finished = [True] * len(self.kinds)
            return
        self.campaign.check_time()
        self.campaign.progress.stage("counting what options send")
        explorers = {kind.index: OptionExplorer(kind) for kind in self.kinds}
        for kind in self.kinds:
            self._tell(explorers[kind.index], kind, _first(kind))
        while True:
            batches = []
            for kind, count in zip(self.kinds, self._batches(), strict=True):
                more = [] if self.finished[kind.index] else explorers[kind.index].ask(count)
                batches.append([(kind, option) for option in more])
                self.finished[kind.index] = not more
            in_turn = itertools.chain(*itertools.zip_longest(*batches))
            asked = [one for one in in_turn if one is not None]  # if time ends, of every segment
            if not asked:
                return
            self.ledger.measure(asked)
            for kind, option in asked:
                self._tell(explorers[kind.index], kind, option)

    def _batches(self) -> list[int]:
        """How many options to try of each segment: with a budget by the share of a step that its
        occurrences take."""
        if self.scope.budget_s is None:
            return [BATCH] * len(self.kinds)
        fastest = [next(iter(self.ledger.ranked(kind)), _first(kind)) for kind in self.kinds]
        times_s = [*map(self._takes_s, self.kinds, fastest)]
        total_s = max(sum(times_s), RESOLUTION_S)
        return [max(1, math.ceil(HURRIED * time_s / total_s)) for time_s in times_s]

    def _takes_s(self, kind: Kind, option: Option) -> float:
        """In a step, where all occurrences of the segment choose it; 0 where it does not run."""
        cost = self.ledger.cost(kind, option)
        happens = len(self.analysis.distinct_segments[kind.index].occurrences)
        return 0.0 if cost is None else happens * cost.time_s

    def _tell(self, explorer: OptionExplorer, kind: Kind, option: Option) -> None:
        cost = self.ledger.cost(kind, option)
        if cost is None:
            explorer.tell(option, None, False)
        else:
            time_s = cost.at_least_s if cost.rough else cost.time_s
            explorer.tell(option, max(time_s, RESOLUTION_S), cost.rough)

    def _states(self) -> None:
        self.tight = memory_counts(self.analysis, self.ledger, self.scope)
        measure_states(self.ledger, self.scope, thorough=self.tight)

    def _reshard_leading(self) -> None:
        """Before anything else that a budget may have no time for."""
        self._reshard(LEADING)

    def _reshard(self, leading: int | None = None) -> None:
        """Every pair of layouts that options on the two sides of a boundary may need, those of fast
        options first. `leading`: of so many layouts, those of the fastest options."""
        wanted: list[tuple[int, Resharding]] = []
        for boundary in dict.fromkeys(crossing.boundary for crossing in self.crossings):
            sides = []
            for end in (boundary.source, boundary.target):
                lie: dict[Layout, tuple[Layouts, ...]] = {}
                for found in self.ledger.running(end.kind):
                    lie.setdefault(end.layout(found), found)
                sides.append(list(lie.values())[:leading])
            for (i, left), (j, right) in itertools.product(*map(enumerate, sides)):
                needed = boundary.resharding(left, right)
                if needed is not None:
                    wanted.append((i + j, needed))
        requests = self.ledger.reshardings
        for _, needed in sorted(wanted, key=lambda one: one[0]):
            if needed not in requests:
                requests[needed] = resharding_request(self.machine, self.mesh, needed)
        with self.campaign.trying(wave=SMALL):
            self.campaign.measure(requests.values())

    def _alone(self) -> None:
        states = State if self.tight else (State.BLOCK,)
        for kind in self.kinds:
            if kind.chained is not None:
                fastest = (self.ledger.ranked(kind, state)[:ALONE] for state in states)
                for option in itertools.chain(*fastest):
                    layouts = self.ledger.layouts[kind.index][option]
                    (request,) = cut_requests(self.machine, self.mesh, kind, option, layouts)
                    self.ledger.alone[kind.index][option] = request
        self.campaign.measure(request for found in self.ledger.alone for request in found.values())

    def _profile(self) -> Profile:
        campaign = self.campaign
        times = {
            resharding: self.ledger.resharding_s(resharding)
            for resharding in self.ledger.reshardings
        }
        return Profile(
            machine=self.machine,
            segments=tuple(
                self.ledger.segment(kind, self.finished[kind.index]) for kind in self.kinds
            ),
            crossings=self.crossings,
            reshardings={what: found for what, found in times.items() if found is not None},
            base_s=campaign.base_s,
            each_s=campaign.each_s,
            compiled=campaign.compiled,
            loaded=campaign.loaded,
            compile_s=campaign.compile_s,
            seconds=time.monotonic() - self.start,
            missing=tuple(dict.fromkeys(self.missing)),
        )


def _first(kind: Kind) -> Option:
    return Option((0,) * len(kind.strategies))


def _all(kind: Kind, sample: int | None) -> Iterable[Option]:
    sizes = [len(choices) for choices in kind.strategies]
    if sample is None or kind.space <= sample:
        return (Option(combo) for combo in itertools.product(*map(range, sizes)))
    draw = random.Random(0)
    return (Option(tuple(draw.randrange(size) for size in sizes)) for _ in range(sample))


def _work(kind: Kind) -> float:
    cut = kind.cuts[0]
    return sum(flops(equation.op) for equation in cut.graph.equations if equation.op.map)
