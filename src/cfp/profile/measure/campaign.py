"""Measures programs: looks them up, and has what is missing compiled, run and written down.

Programs go in waves. A wave is compiled in parallel and then runs in turn (`rounds`). Where the
compiler needs the devices (a CPU's cores; a GPU, on which XLA tries kernels) nothing compiles
meanwhile; elsewhere the next wave is given to the compiler with it, so that neither threads nor
devices wait. A measurement is in the store as soon as its wave ends.

A program that is at work when the worker dies or hangs is tried once more, alone; then it counts as
failed, with the reason. What else was in its wave is done again. The failure is stored where every
end was the program's own doing: a crash (SIGSEGV, SIGABRT ...), an exit, a hang. Where the worker
was killed from outside, or the budget's end cut the wait for it short, nobody knows whether the
program is to blame: it counts as failed in this run (`passing`), and the next one tries it again.

What came of it is in `findings`; `compiling` has the programs that the worker holds.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cfp.errors import CfpError
from cfp.links.network import Network
from cfp.profile.measure.blame import TRIED_AGAIN, Blame
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.compiling import Wave, WorkerPrograms
from cfp.profile.measure.findings import Findings, KernelTimes
from cfp.profile.measure.lock import StillHeld, exclusive
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.progress import Outlook, Progress, kind_of
from cfp.profile.measure.rounds import Effort, OutOfTime, seconds_left
from cfp.profile.measure.running import Running
from cfp.profile.measure.store import Store
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Failed
from cfp.profile.runners.runner import Runner, RunnerLost

LOSSES = 6  # of the worker in a row, with nothing measured between them: more than three programs
# that strike twice each, so that the fault is not theirs
WORTHWHILE_S = 5.0  # a new worker takes most of it to start: with less left there is no going on


@dataclass
class Campaign:
    """`measure` is the entry; `known` is what came of it. The counters are for reports.

    Nothing is begun after the `deadline`, which is one of the budget's (`until`), nor what would
    not be compiled by then; the runner knows when the whole budget ends. With a `network`, the
    device stands in for others.
    """

    runner: Runner
    store: Store
    machine: Machine
    effort: Effort
    progress: Progress
    overlap: bool
    budget: Budget
    network: Network | None = None
    compiling_s: float = 0.0  # waited for compilers; `compile_s` is what they took, side by side
    passing: set[str] = field(default_factory=set)  # failed in this run only: not in the store
    outlook: Outlook = field(default_factory=Outlook)

    def __post_init__(self) -> None:
        self.deadline = self.budget.ends
        self._findings = Findings(self.store, self.machine, self.progress, self.network)
        self._programs = WorkerPrograms(self.runner, self.budget.abreast)
        self.running = Running(
            self.runner,
            self._programs,
            self._findings,
            KernelTimes(self.store, self.machine),
            self.progress,
        )
        self._kept = ""  # stays in the worker: to be the anchor
        self._blame = Blame()
        self._losses = 0
        self._afresh: set[str] = set()  # to be measured, whatever the store has
        self._awaited = False  # what is being compiled when the budget ends is waited for

    @property
    def known(self) -> dict[str, Measurement]:
        return self._findings.known

    @property
    def loaded(self) -> int:
        return self._findings.loaded

    @property
    def compiled(self) -> int:
        return self._programs.compiled

    @property
    def compile_s(self) -> float:
        return self._programs.compile_s

    def measure(self, requests: Iterable[Request], *, together: bool = False) -> None:
        """Measures the requests, so that `known` has each of them; raises `OutOfTime` if the budget
        ends before.

        `together` measures all of them where one is missing, so that they run in turn; but without
        those that are not compiled when half of the time left is over, or are left out. The first
        is never left out. On a stand-in those that are known stay: their times are the device's
        own, and do not drift with what ran beside them."""
        wanted = {request.key: request for request in requests}
        missing = wanted.keys() - self.known.keys()
        self._findings.load(request for key, request in wanted.items() if key in missing)
        if together and self.network is None and not wanted.keys() <= self.known.keys():
            ran = {key for key in wanted if key in self.known and self.known[key].failed is None}
            self._findings.forget(ran, len(ran & missing))
            self._afresh = ran
        todo = tuple(request for key, request in wanted.items() if key not in self.known)
        self.progress.expect(len(todo))
        self.outlook.found(len(missing), len(todo))
        try:
            self._measure(todo, together)
        finally:
            self._afresh = set()

    @contextmanager
    def trying(self, **changes: Any) -> Iterator[None]:
        """Measures with another effort for a while."""
        usual = self.effort
        self.effort = replace(usual, **changes)
        try:
            yield
        finally:
            self.effort = usual

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Sets the deadline for a while, to one of the budget's."""
        usual, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = usual

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Measures what the budget is there for: it has all that is left, and if it is still being
        compiled when the budget ends it is waited for, and runs."""
        self._awaited = True
        try:
            with self.until(self.budget.ends):
                yield
        finally:
            self._awaited = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keeps the programs that are measured together meanwhile in the worker: one that is asked
        for again under another key is not compiled again. `let_go` frees them."""
        self._programs.hold()
        yield
        self._programs.release()

    def let_go(self, but: Iterable[str] = ()) -> None:
        """Frees the programs that are held, but for some."""
        self._programs.let_go(but)

    def _measure(self, todo: Wave, together: bool) -> None:
        size = self.effort.wave
        waves: deque[Wave] = deque(todo[i : i + size] for i in range(0, len(todo), size))
        too_late = False
        while waves:
            every = waves.popleft()
            wave = every if together else self._in_time(every)
            too_late = too_late or len(wave) < len(every)
            if not wave:
                continue
            self._tell_left([*wave, *itertools.chain(*waves)])
            start = time.monotonic()
            trusted = not any(self._blame.suspected(request.key) for request in wave)
            try:
                ahead = bool(waves) and self.overlap and trusted
                following = self._in_time(waves[0]) if ahead else ()
                self._wave(wave, following, patient=not together)
                self._losses = 0
                made = [self.known[one.key] for one in wave if one.key in self.known]
                took = [(kind_of(m.name), m.compile_s + sum(m.runs_s)) for m in made]
                self.outlook.saw(took, time.monotonic() - start)
            except RunnerLost as lost:
                self._programs.lost()
                if lost.hung and lost.outside and self._left_s() < WORTHWHILE_S:
                    raise OutOfTime from None
                self._losses += 1
                if self._losses > LOSSES:
                    raise CfpError(
                        f"The worker was lost {self._losses} times in a row ({lost.reason}): see "
                        "whether the devices work. What was measured is kept."
                    ) from None
                self.progress.lost(lost.reason)
                waves.extendleft(reversed(self._after(lost, wave)))
        if too_late:
            raise OutOfTime

    def _in_time(self, wave: Wave) -> Wave:
        """Returns the programs that are compiled before the deadline, as far as those of their kind
        tell: the others would only keep the compiler from what is measured next."""
        left_s = self._left_s()
        return tuple(one for one in wave if self._programs.expected_s(one) <= left_s)

    def _tell_left(self, todo: Sequence[Request]) -> None:
        left = self.outlook.left_s(Counter(kind_of(request.name) for request in todo))
        if left is not None:
            self.progress.ahead(*left)

    def set_overhead(self, few: Request, many: Request) -> None:
        """Measures what it takes to start a program, by two that do nothing."""
        self.measure([few, many])
        low, high = self.known[few.key], self.known[many.key]
        if low.failed is None and high.failed is None:
            each_s = max(0.0, high.time_s - low.time_s) / (many.arguments - few.arguments)
            self.running.each_s = each_s
            self.running.base_s = max(0.0, low.time_s - few.arguments * each_s)

    def set_anchor(self, request: Request) -> None:
        """Makes this program the anchor: all that is measured from here on runs in turn with it."""
        self._kept = request.key
        self.measure([request])
        found = self.known[request.key]
        if found.failed is None:
            self.running.anchor = request
            self.running.anchor_s = self._findings.anchor_s(request.key)

    def failures(self) -> list[Measurement]:
        """Returns what does not run, as far as this run asked for it."""
        return [found for found in self.known.values() if found.failed is not None]

    def settle(self) -> None:
        """Makes what is known relative to how fast the machine usually was so far."""
        self._findings.settle()

    def _wave(self, wave: Wave, following: Wave, *, patient: bool) -> None:
        """Compiles and measures some programs; if not `patient`, those that compile in time."""
        anchor = () if self.running.anchor is None else (self.running.anchor,)
        self.check_time()
        self.progress.compiling([request.name for request in wave])
        start = time.monotonic()
        programs = self._programs
        if patient:
            programs.compile((*anchor, *wave), following, self.deadline)
        else:
            wave = self._compile_in_time(anchor, wave)
        self.compiling_s += time.monotonic() - start
        for request in wave:
            answer = programs.learn(request)
            if isinstance(answer, Failed):
                self._fail(request, answer.reason)
        try:
            with self._turn():
                # another planner may have measured some while we waited for our turn
                others = (request for request in wave if request.key not in self.known)
                self._findings.load(one for one in others if one.key not in self._afresh)
                left = [request for request in wave if request.key not in self.known]
                if self.network is None:
                    self.running.run(left, self.effort, self.deadline)
                elif patient:
                    self.running.run_distinct(left, self.effort, self.deadline)
                else:  # one after another: each makes its inputs once
                    for request in left:
                        self.running.run([request], self.effort, self.deadline)
        except StillHeld:
            raise OutOfTime from None
        keep = {self._kept, *(request.key for request in (*anchor, *following))}
        retire = programs.drop if patient else programs.retire
        retire([request.key for request in wave if request.key not in keep])

    def _compile_in_time(self, anchor: Wave, wave: Wave) -> Wave:
        usual_s = None if self.budget.one is None else self.budget.one.compile_s
        if not self._awaited:
            return self._programs.compile_in_time(anchor, wave, self.deadline, usual_s)
        wave = self._programs.compile_in_time(anchor, wave, math.inf, usual_s)
        self.deadline = self.runner.ends = self.budget.late
        return wave

    def _turn(self) -> AbstractContextManager[None]:
        """Returns the lock by which this process has the devices to itself. It is not by mesh: a
        smaller one is of the same devices."""
        waiting = self.progress.waiting
        return exclusive(self.machine.platform, waiting=waiting, until=self.deadline)

    def _after(self, lost: RunnerLost, wave: Wave) -> list[Wave]:
        """Returns what is left of the wave, to be tried again. Where an anchor that ran before is
        to blame, it goes on without one."""
        left = [request for request in wave if request.key not in self.known]
        anchor = self.running.anchor
        if anchor is not None and self._blame.strikes_out(anchor.key, lost, left):
            self.running.anchor = None
        failed, again = self._blame.judge(lost, left, alone=len(wave) == 1)
        for request in failed:
            self._give_up(request, lost.reason)
            self._losses = 0
        return again

    def _give_up(self, request: Request, reason: str) -> None:
        """Counts a program that took the worker with it as failed: for good if that was always its
        own doing, else in this run."""
        if self._blame.certain(request.key):
            self._fail(request, reason)
            return
        self.passing.add(request.key)
        found = Measurement(request.key, request.name, failed=f"{reason}{TRIED_AGAIN}")
        self._findings.note(request, found)

    def _fail(self, request: Request, reason: str) -> None:
        failed = Measurement(request.key, request.name, failed=reason)
        self._findings.write(request, failed)

    def check_time(self) -> float:
        """Returns the seconds left; raises `OutOfTime` if there are none."""
        return seconds_left(self.deadline)

    def _left_s(self) -> float:
        return self.deadline - time.monotonic()
