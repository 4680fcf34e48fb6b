"""Stage 4: measures the distinct segments of a step and the reshardings between them.

what starting a program takes              Campaign.set_overhead
one option of every segment                so that there is a plan at any moment
what is expected to fit                    so that there is one within the memory limit, too
the options that may be best               Explorer, or all of them
reshardings                                between the fastest of them: no plan has them without
split streams                              of the fastest option
training state split further               of the fastest option
both, and what is kept for the backward    of the options of plans that are expected to lead, where
pass                                       memory may decide (`explore.expected`)
reshardings                                every pair of layouts at a boundary
the fastest options alone                  of segments measured as two in a row
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from cfp.analysis import Analysis
from cfp.blocks.contraction import flops
from cfp.layouts import AnyMesh
from cfp.profile.explore.expected import Expectations
from cfp.profile.explore.exploration import Exploration
from cfp.profile.explore.forecast import ALONE, Forecast, Stage, options_ahead
from cfp.profile.explore.keeps import (
    ROUNDS,
    Leading,
    allowed,
    may_keep_more,
    measure_leading,
)
from cfp.profile.explore.neighbours import measure_alone, measure_reshardings
from cfp.profile.explore.scope import Recompute, Scope
from cfp.profile.explore.states import measure_states, memory_counts
from cfp.profile.explore.streams import measure_streams
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.costs import SegmentProfile
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.progress import FULL_STEP, Ahead
from cfp.profile.measure.rounds import OutOfTime
from cfp.profile.profile import Profile
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.lower import check_callbacks
from cfp.profile.programs.requests import idle_request

IDLE = (2, 64)  # arguments of the programs that do nothing: a line through both is the overhead
LEADING = 3  # layouts at a boundary between which reshardings are measured while options are
LAID_OUT = 64  # options laid out at once where all are measured: a second or two of waiting
LEADS = 3  # times that the leading plans are looked for, a second or two each in a large model:
# what the first ones showed may let others lead, and more than that was not seen to


FOR_ANOTHER_LIMIT = (Stage.FITTING, Stage.EXPECTED, Stage.RESHARDINGS, Stage.ALONE)
FindLeading = Callable[[Analysis, Profile, float | None], Leading]  # the last is a memory limit


def measure_segments(
    campaign: Campaign,
    analysis: Analysis,
    mesh: AnyMesh,
    scope: Scope,
    leading: FindLeading | None = None,
) -> Profile:
    """Measures with a campaign that may have measured other things before."""
    return Profiler(analysis, mesh, campaign, scope, leading).run()


@dataclass
class Profiler:
    """`run` measures. It sets the campaign's overhead and anchor, and its budget learns what a full
    step takes. `leading` finds the leading plans in what was measured so far; without it, every
    option keeps what the step does as it is written."""

    analysis: Analysis
    mesh: AnyMesh
    campaign: Campaign
    scope: Scope
    leading: FindLeading | None
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_callbacks(self.analysis.graph)
        self.start = time.monotonic()
        self.machine = self.campaign.machine
        self.kinds = find_kinds(self.analysis, self.scope.outer)
        self.interfaces = find_interfaces(self.analysis, self.kinds)
        self.ledger = Ledger(self.campaign, self.mesh, self.kinds, self.interfaces)
        self.finished = [False] * len(self.kinds)
        self.options = options_ahead(self.kinds, self.scope.exhaustive, self.scope.sample)

    def run(self, stages: Sequence[Stage] = tuple(Stage)) -> Profile:
        """Returns what was measured, once these stages are done."""
        leads = self.leading is not None
        self.forecast = Forecast(self.analysis, self.ledger, self.scope, leads=leads)
        doing = {
            Stage.OVERHEAD: ("what starting a program takes", self._overhead),
            Stage.FIRST: ("the first option of every segment", self._first),
            Stage.FIRST_RESHARDINGS: ("reshardings", self._reshard),
            Stage.FITTING: ("what fits into memory", self._fit),
            Stage.OPTIONS: ("options that may be faster", self._explore),
            Stage.LEADING_RESHARDINGS: ("reshardings", self._reshard_leading),
            Stage.STREAMS: ("split streams", self._streams),
            Stage.STATES: ("training state split further", self._states),
            Stage.EXPECTED: ("what needs less memory", self._expected),
            Stage.RESHARDINGS: ("reshardings", self._reshard),
            Stage.ALONE: ("the fastest options alone", self._alone),
        }
        for number, stage in enumerate(stages):
            name, measure = doing[stage]
            self._forecast(stage)
            try:
                with self.campaign.until(self._deadline(stage)):
                    measure()
            except OutOfTime:
                self.missing.append(name)
                if stage == Stage.FIRST:  # nothing to go on with
                    self.missing += [doing[later][0] for later in stages[number:]]
                    break
        self.campaign.settle()
        return self._profile(self.scope.recompute)

    def run_within(self, limit_bytes: float) -> Profile:
        """Returns the profile with what may lead under another memory limit, too, once `run` is
        done."""
        self.scope = replace(self.scope, memory_limit_bytes=limit_bytes)
        self.options = [Ahead(0, 0)] * len(self.kinds)  # all were explored
        return self.run(FOR_ANOTHER_LIMIT)

    def _forecast(self, stage: Stage) -> None:
        """Tells the campaign what comes after what it is asked for."""
        budget = self.campaign.budget
        full_steps = budget.choosing + budget.confirming
        self.campaign.outlook.later = self.forecast.after(stage, self.options, full_steps)

    def _overhead(self) -> None:
        if self.campaign.network is not None:
            return  # the device's own time counts, in which the host has no part
        few, many = (idle_request(self.machine, self.mesh, count) for count in IDLE)
        self.campaign.set_overhead(few, many)
        largest = max(self.kinds, key=_work)
        self.campaign.set_anchor(self.ledger.ask(largest, largest.first)[0])

    def _first(self) -> None:
        self.ledger.measure((kind, kind.first) for kind in self.kinds)
        if self.machine.platform == "gpu" and self.campaign.budget.limited:
            # its kernels are tuned by now, as most of a full step's are: what it takes to compile
            # tells what that will take
            measure_alone(self.ledger, {kind.index: [kind.first] for kind in self.kinds})
        self._foresee_full_step()

    def _fit(self) -> None:
        """Measures what is expected to fit into the memory limit, until something does: a budget
        may leave no time for it once the options are explored. Where that turned out to need more,
        what is expected to need least is measured beside what is then expected to fit."""
        limited = self.campaign.budget.limited and self.scope.memory_limit_bytes is not None
        if self.leading is None or not limited:
            return
        expectations = Expectations(self.ledger, self.scope)
        for attempt in range(ROUNDS):
            if self._leading().fits:
                return
            leading = self._leading(expectations)
            if attempt:
                smallest = self._leading(expectations, limit_bytes=0.0)
                leading = replace(leading, spare=smallest.first)
            if not measure_leading(self.ledger, leading, self.scope.recompute):
                return

    def _deadline(self, stage: Stage) -> float:
        """Returns when a stage must end. Without a plan that fits nothing follows, so what it takes
        to have one may take all of the budget."""
        budget = self.campaign.budget
        if stage < Stage.OPTIONS:
            return budget.ends
        return budget.explored if stage == Stage.OPTIONS else budget.profiled

    def _foresee_full_step(self) -> None:
        """Tells the budget what a full step will take: deadlines follow from it."""
        one = self.forecast.full_step()
        self.campaign.budget = self.campaign.budget.knowing(one)
        self.campaign.outlook.expect_each(FULL_STEP, one.choosing_s)

    def _explore(self) -> None:
        if self.scope.exhaustive:
            sample = self.scope.sample
            for kind in self.kinds:
                options = iter(_all(kind, sample))
                while some := list(itertools.islice(options, LAID_OUT)):
                    left = max(self.options[kind.index].high - len(some), 0)
                    self.options[kind.index] = Ahead(left, left)
                    self._forecast(Stage.OPTIONS)
                    self.ledger.measure((kind, option) for option in some)
            self.finished = [True] * len(self.kinds)
            return
        self.campaign.check_time()
        self.campaign.progress.stage("counting what options send")
        exploration = Exploration(self.ledger, self.campaign.budget.limited)
        self.finished = exploration.finished
        while asked := exploration.ask():
            self.options = exploration.ahead()
            self._forecast(Stage.OPTIONS)
            with self.campaign.until(self._deadline(Stage.OPTIONS)):
                self.ledger.measure(asked)
            self._foresee_full_step()
            exploration.tell(asked)

    def _streams(self) -> None:
        measure_streams(self.ledger, self.scope, thorough=self._thorough())

    def _states(self) -> None:
        measure_states(self.ledger, self.scope, thorough=self._thorough())

    def _thorough(self) -> bool:
        """Returns whether all that may need less memory is measured: where nobody can say which of
        it would lead."""
        if self.leading is not None and not self.scope.lean:
            return False
        return memory_counts(self.analysis, self.ledger, self.scope)

    def _expected(self) -> None:
        """Measures what is expected to lead, and is not known, until all that leads is measured. It
        is little: expectations are corrected by what they led to."""
        recompute, limit = self.scope.recompute, self.scope.memory_limit_bytes
        if self.leading is None:
            return
        if limit is None and not any(map(may_keep_more, self.kinds)):
            return
        expectations = Expectations(self.ledger, self.scope)
        for _ in range(ROUNDS):
            leading = self._leading()
            if leading.binds:
                leading = self._leading(expectations)
            if not measure_leading(self.ledger, leading, recompute):
                return

    def _reshard(self) -> None:
        measure_reshardings(self.ledger)

    def _reshard_leading(self) -> None:
        """Measures the reshardings between the fastest options, before anything else that a budget
        may have no time for."""
        measure_reshardings(self.ledger, LEADING)

    def _alone(self) -> None:
        """Measures segments alone that were measured as two in a row: the fastest options, for what
        a program takes once, and under a limit those of the best plan, for what each of many in a
        row needs. Where memory decides, what the best plan is then may be another."""
        measure_alone(self.ledger, {k.index: self.ledger.ranked(k)[:ALONE] for k in self.kinds})
        if self.leading is None or self.scope.memory_limit_bytes is None:
            return
        for _ in range(LEADS):
            leading = self._leading(recompute=self.scope.recompute)
            if not measure_alone(self.ledger, leading.first) or not leading.binds:
                return

    def _leading(
        self,
        expectations: Expectations | None = None,
        recompute: Recompute = Recompute.AUTO,
        limit_bytes: float | None = None,
    ) -> Leading:
        """Returns the options that lead by what was measured, and by what is expected besides,
        under the memory limit or a lower one."""
        assert self.leading is not None
        found = self._profile(recompute, expectations)
        limit = self.scope.memory_limit_bytes if limit_bytes is None else limit_bytes
        return self.leading(self.analysis, found, limit)

    def _profile(self, recompute: Recompute, expectations: Expectations | None = None) -> Profile:
        """Returns all that was measured and may be chosen, and what is expected besides."""
        campaign = self.campaign
        times = {
            resharding: self.ledger.resharding_s(resharding)
            for resharding in self.ledger.reshardings
        }
        return Profile(
            machine=self.machine,
            segments=tuple(self._segment(kind, recompute, expectations) for kind in self.kinds),
            interfaces=self.interfaces,
            reshardings={what: found for what, found in times.items() if found is not None},
            base_s=campaign.running.base_s,
            each_s=campaign.running.each_s,
            compiled=campaign.compiled,
            loaded=campaign.loaded,
            compile_s=campaign.compile_s,
            seconds=time.monotonic() - self.start,
            missing=tuple(dict.fromkeys(self.missing)),
        )

    def _segment(
        self, kind: Kind, recompute: Recompute, expectations: Expectations | None
    ) -> SegmentProfile:
        found = self.ledger.segment(kind, self.finished[kind.index])
        costs = {o: cost for o, cost in found.costs.items() if allowed(kind, o, recompute)}
        if expectations is None:
            return replace(found, costs=costs)
        more = expectations.of(kind)
        layouts = {**found.layouts, **more.layouts}
        return replace(found, costs={**costs, **more.costs}, layouts=layouts)


def _all(kind: Kind, sample: int | None) -> Iterable[Option]:
    sizes = [len(choices) for choices in kind.strategies]
    if sample is None or kind.space <= sample:
        return (Option(combo) for combo in itertools.product(*map(range, sizes)))
    draw = random.Random(0)
    return (Option(tuple(draw.randrange(size) for size in sizes)) for _ in range(sample))


def _work(kind: Kind) -> float:
    extract = kind.extracts[0]
    return sum(flops(equation.op) for equation in extract.graph.equations if equation.op.map)
