"""Measures programs: looks them up, compiles what is missing, runs it, writes it down.

Programs go in waves. A wave is compiled in parallel and then runs in turn (`rounds`). Where devices
and compiler share the cores (CPU) nothing compiles meanwhile; elsewhere the next wave does. A
measurement is in the store as soon as its wave ends.

A program that is at work when the worker dies or hangs is tried once more, alone; then it counts as
failed, with the reason. What else was in its wave is done again. The failure is stored where every
end was the program's own doing: a crash (SIGSEGV, SIGABRT ...), an exit, a hang. Where the worker
was killed from outside, or the budget's end cut the wait for it short, nobody knows whether the
program is to blame: it counts as failed in this run (`passing`), and the next one tries it again.

Drifts are stored relative to the anchor's first measurement. `settle` finds how fast the machine
usually was (`drift`), and from then on `known` is relative to that.
"""

from __future__ import annotations

import itertools
import math
import statistics
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
from cfp.profile.measure.drift import UsualDrift
from cfp.profile.measure.lock import StillHeld, exclusive
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.outlook import Outlook, kind_of
from cfp.profile.measure.progress import Progress
from cfp.profile.measure.rounds import Anchor, Effort, OutOfTime, Rounds
from cfp.profile.measure.store import Record, Store
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Compiled, Failed
from cfp.profile.runners.runner import Runner, RunnerLost

LOSSES = 6  # of the worker in a row, with nothing measured between them: more than three programs
# that strike twice each, so that the fault is not theirs
SOON_S = 0.1  # a program that compiles faster leaves time for any number of others
WORTHWHILE_S = 5.0  # a new worker takes most of it to start: with less left there is no going on
Wave = tuple[Request, ...]


@dataclass
class Campaign:
    """`measure` is the entry; `known` is what came of it. The counters are for reports.

    Nothing is begun after the `deadline`, which is one of the budget's (`until`), nor what would
    not be compiled by then; the runner knows when the whole budget ends. Starting a program takes
    `base_s` + arguments * `each_s`.

    With a `network`, the device stands in for others: what is stored is what was measured, with the
    program's schedule, and `known` is its replay on the network. So another network needs no new
    runs.
    """

    runner: Runner
    store: Store
    machine: Machine
    effort: Effort
    progress: Progress
    overlap: bool
    budget: Budget
    network: Network | None = None
    known: dict[str, Measurement] = field(default_factory=dict)
    compiled: int = 0
    compile_s: float = 0.0
    loaded: int = 0
    compiling_s: float = 0.0  # waited for compilers; `compile_s` is what they took, side by side
    running_s: float = 0.0
    base_s: float = 0.0
    each_s: float = 0.0

    def __post_init__(self) -> None:
        self._anchor: Request | None = None
        self._anchor_s = 0.0
        self._usual_drift = UsualDrift()
        self._drifts: dict[str, float] = {}  # as stored
        self._ran_s: dict[str, float] = {}  # what a run took here, whatever a network adds
        self._kept = ""  # stays in the worker: to be the anchor
        self._sent: set[str] = set()  # given to the worker
        self._ready: dict[str, Compiled | Failed] = {}  # what the worker made of them
        self._blame = Blame()
        self.outlook = Outlook()
        self.passing: set[str] = set()  # failed in this run only: not in the store
        self._best: dict[str, float] = {}
        self._losses = 0
        self.deadline = self.budget.ends
        self._compile_s: dict[str, float] = {}  # that the last program of a kind took
        self._afresh: set[str] = set()  # to be measured, whatever the store has
        self._held: set[str] | None = None  # stays in the worker after it was measured

    def measure(self, requests: Iterable[Request], *, together: bool = False) -> None:
        """Measures the requests, so that `known` has each of them; raises `OutOfTime` if the budget
        ends before.

        `together` measures all of them where one is missing, so that they run in turn; but without
        those that are not compiled when half of the time left is over, or are left out. The first
        is never left out."""
        wanted = {request.key: request for request in requests}
        missing = wanted.keys() - self.known.keys()
        self._load(request for key, request in wanted.items() if key in missing)
        if together and not wanted.keys() <= self.known.keys():
            ran = {key for key in wanted if key in self.known and self.known[key].failed is None}
            self.loaded -= len(ran & missing)
            for key in ran:
                del self.known[key]
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
    def holding(self) -> Iterator[None]:
        """Keeps the programs that are measured meanwhile in the worker: one that is asked for again
        under another key is not compiled again. `let_go` frees them."""
        self._held = set()
        yield
        self.let_go()
        self._held = None

    def let_go(self, but: Iterable[str] = ()) -> None:
        """Frees the programs that are held, but for some."""
        gone = sorted((self._held or set()) - {*but})
        if gone:
            self._drop([key for key in gone if key in self._sent])
            self._held = (self._held or set()) - {*gone}

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
                self._sent.clear()
                self._ready.clear()
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
        expected = [self._compile_s.get(kind_of(request.name), 0.0) for request in wave]
        return tuple(r for r, needs_s in zip(wave, expected, strict=True) if needs_s <= left_s)

    def _tell_left(self, todo: Sequence[Request]) -> None:
        left = self.outlook.left_s(Counter(kind_of(request.name) for request in todo))
        if left is not None:
            self.progress.ahead(*left)

    def set_overhead(self, few: Request, many: Request) -> None:
        """Measures what it takes to start a program, by two that do nothing."""
        self.measure([few, many])
        low, high = self.known[few.key], self.known[many.key]
        if low.failed is None and high.failed is None:
            self.each_s = max(0.0, high.time_s - low.time_s) / (many.arguments - few.arguments)
            self.base_s = max(0.0, low.time_s - few.arguments * self.each_s)

    def set_anchor(self, request: Request) -> None:
        """Makes this program the anchor: all that is measured from here on runs in turn with it."""
        self._kept = request.key
        self.measure([request])
        found = self.known[request.key]
        if found.failed is None:
            self._anchor = request
            self._anchor_s = self._ran_s[request.key] / self._drifts[request.key]

    def failures(self) -> list[Measurement]:
        """Returns what does not run, as far as this run asked for it."""
        return [found for found in self.known.values() if found.failed is not None]

    def settle(self) -> None:
        """Makes what is known relative to how fast the machine usually was so far."""
        before = self._usual_drift.usual
        self._usual_drift.settle()
        slower = self._usual_drift.usual / before
        self._best = {group: best_s * slower for group, best_s in self._best.items()}
        for key, known in self.known.items():
            self.known[key] = replace(known, drift=self._usual_drift.drift(self._drifts[key]))

    def _load(self, requests: Iterable[Request]) -> None:
        requests = [request for request in requests if request.key not in self._afresh]
        records = self.store.get_many([request.key for request in requests])
        why = {}
        for request in requests:
            if request.key in records:
                try:
                    found = Measurement.from_json(records[request.key].document, request.key)
                except ValueError as error:
                    why[request.name] = str(error)
                    continue
                self._know(request, found)
        if why:
            self.store.distrust([*why], next(iter(why.values())))
        count = len(records) - len(why)
        if count:
            self.loaded += count
            self.progress.loaded(count)

    def _know(self, request: Request, stored: Measurement) -> None:
        self._usual_drift.see(stored)
        self._drifts[request.key] = stored.drift
        ran = replace(stored, drift=self._usual_drift.drift(stored.drift))
        found = ran
        if self.network is not None:
            found = ran.replayed(self.network)
        elif self.machine.platform == "gpu" and not request.by_host:
            found = ran.on_device()
        self.known[request.key] = found
        if ran.failed is None:
            self._ran_s[request.key] = statistics.median(ran.runs_s)
        if found.failed is None and request.group:
            time_s = (ran if self.network is None else found).time_s
            self._best[request.group] = min(self._best.get(request.group, time_s), time_s)

    def _write(self, request: Request, measurement: Measurement) -> None:
        self._know(request, measurement)
        document, where = measurement.to_json(), self.machine.show()
        self.store.put(
            Record(request.key, request.program, request.name, where, document, time.time())
        )
        self.progress.measured(self.known[request.key], self._best.get(request.group))

    def _wave(self, wave: Wave, following: Wave, *, patient: bool) -> None:
        """Compiles and measures some programs; if not `patient`, those that compile in time."""
        anchor = () if self._anchor is None else (self._anchor,)
        self.check_time()
        self.progress.compiling([request.name for request in wave])
        start = time.monotonic()
        if patient:
            self._submit((*anchor, *wave))
            self._collect((*anchor, *wave))
        else:
            wave = self._compile_in_time(anchor, wave)
        self.compiling_s += time.monotonic() - start
        for request in wave:
            answer = self._ready[request.key]
            if isinstance(answer, Compiled) and answer.seconds > 0:
                self._compile_s[kind_of(request.name)] = answer.seconds
            if isinstance(answer, Failed):
                self._write(request, Measurement(request.key, request.name, failed=answer.reason))
        if self.overlap:
            self._submit(following)
        try:
            with self._turn():
                # another planner may have measured some while we waited for our turn
                self._load(request for request in wave if request.key not in self.known)
                left = [request for request in wave if request.key not in self.known]
                if left:
                    self.progress.running([request.name for request in left])
                    self._run(left)
        except StillHeld:
            raise OutOfTime from None
        keep = {self._kept, *(request.key for request in (*anchor, *following))}
        over = [request.key for request in wave if request.key not in keep]
        if self._held is None:
            self._drop(over)
        else:
            self._held.update(over)

    def _turn(self) -> AbstractContextManager[None]:
        """Returns the lock by which this process has the devices to itself. It is not by mesh: a
        smaller one is of the same devices."""
        waiting = self.progress.waiting
        return exclusive(self.machine.platform, waiting=waiting, until=self.deadline)

    def _submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.key not in self._sent:
                self.runner.submit(request.make())
                self._sent.add(request.key)

    def _compile_in_time(self, anchor: Wave, wave: Wave) -> Wave:
        """Compiles the first program, and of the others those that half of the time left is enough
        for; returns what is compiled. Where all of them would take longer, the others wait until
        the first is done: then it is known how many there is time for."""
        start = time.monotonic()
        half = start + (self.deadline - start) / 2
        first, others = wave[:1], wave[1:]
        each_s = 0.0 if self.budget.one is None else self.budget.one.compile_s
        try:
            self._submit((*anchor, *first))
            if start + len(wave) * each_s > half:
                self._collect((*anchor, *first))
                took_s = max(time.monotonic() - start, SOON_S)
                others = others[: max(0, int((half - time.monotonic()) / took_s))]
            self._submit(others)
            self._collect((*anchor, *first))
            self._collect(others, half)
        except OutOfTime:
            self._drop([one.key for one in others if one.key in self._sent])
            raise
        late = [request.key for request in others if request.key not in self._ready]
        if late:
            self._drop(late)
        return tuple(one for one in (*first, *others) if one.key not in late)

    def _collect(self, requests: Wave, until: float = math.inf) -> None:
        """Waits until all of them are compiled, or have failed to, or until a time."""
        keys = {request.key for request in requests}
        while not keys <= self._ready.keys():
            if time.monotonic() >= until:
                return
            for answer in self.runner.finished(min(1.0, self.check_time())):
                self._ready[answer.key] = answer
                if isinstance(answer, Compiled) and answer.seconds > 0:
                    self.compiled += 1
                    self.compile_s += answer.seconds

    def _run(self, wave: Sequence[Request]) -> None:
        anchor = None
        if self._anchor is not None and isinstance(self._ready.get(self._anchor.key), Compiled):
            anchor = Anchor(self._anchor.key, self._anchor_s)
        # On a stand-in none is stopped early: what a run takes there is without communication, and
        # what is stored must do for other networks.
        competing = wave if self.network is None else ()
        limits = {  # with the start: the net time of a small program may be next to nothing
            request.key: self.effort.cutoff
            * (self._best[request.group] + self._overhead(request))
            / self._usual_drift.usual
            for request in competing
            if request.group in self._best
        }
        for request in wave:
            if request.slowest_s < math.inf:
                limits[request.key] = request.slowest_s / self._usual_drift.usual
        rounds = Rounds(self.runner, self.effort, anchor, limits, self.deadline)
        start = time.monotonic()
        results = rounds.run([request.key for request in wave])
        self.running_s += time.monotonic() - start
        for request in wave:
            result = results.get(request.key)
            if result is None:
                continue  # left out
            compiled = self._ready[request.key]
            assert isinstance(compiled, Compiled)
            self._write(
                request,
                replace(
                    result,
                    name=request.name,
                    overhead_s=self._overhead(request),
                    compile_s=compiled.seconds,
                    memory=compiled.memory,
                    collectives=compiled.collectives,
                ),
            )

    def _overhead(self, request: Request) -> float:
        return self.base_s + request.arguments * self.each_s

    def _drop(self, keys: Sequence[str]) -> None:
        self.runner.drop(keys)
        for key in keys:
            self._sent.discard(key)
            self._ready.pop(key, None)

    def _after(self, lost: RunnerLost, wave: Wave) -> list[Wave]:
        """Returns what is left of the wave: those under suspicion alone, then the others. A program
        whose wait the budget's end cut short is not waited for twice."""
        left = [request for request in wave if request.key not in self.known]
        suspects = [request for request in left if request.key in lost.during]
        for request in suspects:
            self._blame.strike(request.key, lost)
        anchor = self._anchor
        if anchor is not None and anchor.key in lost.during and not suspects:
            self._blame.strike(anchor.key, lost)
            if self._blame.out(anchor.key):
                self._anchor = None  # it ran before; measure on without it
        cut_short = lost.hung and lost.outside and len(suspects) == 1
        alone: list[Wave] = []
        for request in suspects:
            if cut_short or (self._blame.out(request.key) and len(wave) == 1):
                self._fail(request, lost.reason)
                self._losses = 0
            else:
                alone.append((request,))
        others = tuple(request for request in left if request not in suspects)
        return [*alone, *([others] if others else [])]

    def _fail(self, request: Request, reason: str) -> None:
        """Counts a program that took the worker with it as failed: for good if that was always its
        own doing, else in this run."""
        if self._blame.certain(request.key):
            self._write(request, Measurement(request.key, request.name, failed=reason))
            return
        self.passing.add(request.key)
        found = Measurement(request.key, request.name, failed=f"{reason}{TRIED_AGAIN}")
        self._know(request, found)
        self.progress.measured(found, self._best.get(request.group))

    def check_time(self) -> float:
        """Returns the seconds left; raises `OutOfTime` if there are none."""
        left_s = self._left_s()
        if left_s <= 0:
            raise OutOfTime
        return left_s

    def _left_s(self) -> float:
        return self.deadline - time.monotonic()
