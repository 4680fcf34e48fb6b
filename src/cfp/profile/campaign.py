"""Measures programs: looks them up, compiles what is missing, runs it, writes it down.

Programs go in waves. A wave is compiled in parallel and then runs in turn (`turns`). Where devices
and compiler share the cores (CPU) nothing compiles meanwhile; elsewhere the next wave does. A
measurement is in the store as soon as its wave ends.

A program that is at work when the worker dies or hangs is tried once more, alone; then it counts as
failed, with the reason. What else was in its wave is done again.

Drifts are stored relative to the anchor's first measurement. `settle` finds how fast the machine
usually was (`pace`), and from then on `known` is relative to that.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cfp.errors import CfpError
from cfp.profile.job import Compiled, Failed
from cfp.profile.lock import StillHeld, exclusive
from cfp.profile.machine import Machine
from cfp.profile.measurement import Measurement
from cfp.profile.pace import Pace
from cfp.profile.progress import Progress
from cfp.profile.requests import Request
from cfp.profile.runner import Runner, RunnerLost
from cfp.profile.store import Record, Store
from cfp.profile.turns import Anchor, Effort, OutOfTime, Turns

LOSSES = 6  # of the worker in a row, with nothing measured between them
STRIKES = 2  # how often a program may take the worker down with it
Wave = tuple[Request, ...]


@dataclass
class Campaign:
    """`measure` is the entry; `known` is what came of it. The counters are for reports.

    `deadline` is of `time.monotonic()`. Starting a program takes `base_s` + arguments * `each_s`.
    """

    runner: Runner
    store: Store
    machine: Machine
    effort: Effort
    progress: Progress
    overlap: bool
    deadline: float
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
        self._pace = Pace()
        self._drifts: dict[str, float] = {}  # as stored
        self._kept = ""  # stays in the worker: to be the anchor
        self._sent: set[str] = set()  # given to the worker
        self._ready: dict[str, Compiled | Failed] = {}  # what the worker made of them
        self._strikes: dict[str, int] = {}
        self._best: dict[str, float] = {}
        self._losses = 0
        self._afresh: set[str] = set()  # to be measured, whatever the store has

    def measure(self, requests: Iterable[Request], *, together: bool = False) -> None:
        """Afterwards `known` has every request; raises `OutOfTime` if the budget ends before.

        `together` measures all of them where one is missing, so that they run in turn; but without
        those that are not compiled when half of the time left is over, or are left out."""
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
        try:
            self._measure(todo, together)
        finally:
            self._afresh = set()

    @contextmanager
    def trying(self, **changes: Any) -> Iterator[None]:
        """With another effort for a while."""
        usual = self.effort
        self.effort = replace(usual, **changes)
        try:
            yield
        finally:
            self.effort = usual

    def _measure(self, todo: Wave, together: bool) -> None:
        size = self.effort.wave
        waves: deque[Wave] = deque(todo[i : i + size] for i in range(0, len(todo), size))
        while waves:
            wave = waves.popleft()
            trusted = not any(request.key in self._strikes for request in wave)
            try:
                following = waves[0] if self.overlap and waves and trusted else ()
                self._wave(wave, following, patient=not together)
                self._losses = 0
            except RunnerLost as lost:
                self._sent.clear()
                self._ready.clear()
                self._losses += 1
                if self._losses > LOSSES:
                    raise CfpError(
                        f"The worker was lost {self._losses} times in a row ({lost.reason}): see "
                        "whether the devices work. What was measured is kept."
                    ) from None
                self.progress.lost(lost.reason)
                waves.extendleft(reversed(self._after(lost, wave)))

    def set_overhead(self, few: Request, many: Request) -> None:
        """What it takes to start a program, from two that do nothing."""
        self.measure([few, many])
        low, high = self.known[few.key], self.known[many.key]
        if low.failed is None and high.failed is None:
            self.each_s = max(0.0, high.time_s - low.time_s) / (many.arguments - few.arguments)
            self.base_s = max(0.0, low.time_s - few.arguments * self.each_s)

    def set_anchor(self, request: Request) -> None:
        """All that is measured from here on runs in turn with this program."""
        self._kept = request.key
        self.measure([request])
        found = self.known[request.key]
        if found.failed is None:
            self._anchor = request
            self._anchor_s = statistics.median(found.runs_s) / self._drifts[request.key]

    def settle(self) -> None:
        """Makes what is known relative to how fast the machine usually was so far."""
        before = self._pace.usual
        self._pace.settle()
        slower = self._pace.usual / before
        self._best = {group: best_s * slower for group, best_s in self._best.items()}
        for key, known in self.known.items():
            self.known[key] = replace(known, drift=self._pace.drift(self._drifts[key]))

    def _load(self, requests: Iterable[Request]) -> None:
        requests = [request for request in requests if request.key not in self._afresh]
        records = self.store.get_many([request.key for request in requests])
        for request in requests:
            if request.key in records:
                self._know(request, Measurement.from_json(records[request.key].document))
        if records:
            self.loaded += len(records)
            self.progress.loaded(len(records))

    def _know(self, request: Request, stored: Measurement) -> None:
        self._pace.see(stored)
        self._drifts[request.key] = stored.drift
        measurement = replace(stored, drift=self._pace.drift(stored.drift))
        self.known[request.key] = measurement
        if measurement.failed is None and request.group:
            best = self._best.get(request.group, measurement.time_s)
            self._best[request.group] = min(best, measurement.time_s)

    def _write(self, request: Request, measurement: Measurement) -> None:
        self._know(request, measurement)
        document, where = measurement.to_json(), self.machine.show()
        self.store.put(
            Record(request.key, request.program, request.name, where, document, time.time())
        )
        self.progress.measured(measurement, self._best.get(request.group))

    def _wave(self, wave: Wave, following: Wave, *, patient: bool) -> None:
        """Compiles and measures some programs; if not `patient`, those that compile in time."""
        anchor = () if self._anchor is None else (self._anchor,)
        self.check_time()
        self.progress.compiling([request.name for request in wave])
        start = time.monotonic()
        self._submit((*anchor, *wave))
        until = math.inf if patient else start + (self.deadline - start) / 2
        self._collect({request.key for request in (*anchor, *wave)}, until)
        self.compiling_s += time.monotonic() - start
        late = [request.key for request in wave if request.key not in self._ready]
        if late:
            self._drop(late)
        wave = tuple(request for request in wave if request.key not in late)
        for request in wave:
            answer = self._ready[request.key]
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
        self._drop([request.key for request in wave if request.key not in keep])

    def _turn(self) -> AbstractContextManager[None]:
        """The devices to ourselves. Not by mesh: a smaller one is of the same devices."""
        waiting = self.progress.waiting
        return exclusive(self.machine.platform, waiting=waiting, until=self.deadline)

    def _submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.key not in self._sent:
                self.runner.submit(request.make())
                self._sent.add(request.key)

    def _collect(self, keys: set[str], until: float) -> None:
        """Waits until all of them are compiled, or have failed to; `until` then, if some are."""
        while not keys <= self._ready.keys():
            if time.monotonic() >= until and len(keys & self._ready.keys()) > 1:
                return  # the anchor, which comes first, and one more
            for answer in self.runner.finished(min(1.0, self.check_time())):
                self._ready[answer.key] = answer
                if isinstance(answer, Compiled) and answer.seconds > 0:
                    self.compiled += 1
                    self.compile_s += answer.seconds

    def _run(self, wave: Sequence[Request]) -> None:
        anchor = None
        if self._anchor is not None and isinstance(self._ready.get(self._anchor.key), Compiled):
            anchor = Anchor(self._anchor.key, self._anchor_s)
        limits = {  # with the start: the net time of a small program may be next to nothing
            request.key: self.effort.cutoff
            * (self._best[request.group] + self._overhead(request))
            / self._pace.usual
            for request in wave
            if request.group in self._best
        }
        turns = Turns(self.runner, self.effort, anchor, limits, self.deadline)
        start = time.monotonic()
        results = turns.run([request.key for request in wave])
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
        """What is left of the wave: those under suspicion alone, then the others."""
        left = [request for request in wave if request.key not in self.known]
        suspects = [request for request in left if request.key in lost.during]
        for request in suspects:
            self._strike(request)
        anchor = self._anchor
        blamed = anchor is not None and anchor.key in lost.during and not suspects
        if anchor is not None and blamed and self._strike(anchor) >= STRIKES:
            self._anchor = None  # it ran before; measure on without it
        alone: list[Wave] = []
        for request in suspects:
            if self._strikes[request.key] >= STRIKES and len(wave) == 1:
                self._write(request, Measurement(request.key, request.name, failed=lost.reason))
                self._losses = 0
            else:
                alone.append((request,))
        others = tuple(request for request in left if request not in suspects)
        return [*alone, *([others] if others else [])]

    def _strike(self, request: Request) -> int:
        self._strikes[request.key] = self._strikes.get(request.key, 0) + 1
        return self._strikes[request.key]

    def check_time(self) -> float:
        """Seconds left; raises `OutOfTime` if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left
