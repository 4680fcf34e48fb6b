"""Runs compiled programs in turn, round by round, so that all see the same drift of the machine.

Every round has another order: what ran just before leaves its mark, on the caches if nowhere else,
and no program is to have the same neighbour always. Warm-up rounds first, then those that count.
The anchor, a program whose usual time is known, runs with them: how much slower than usual it was
is the drift of the others, and ties one group of programs to the next. A program clearly slower
than the best known is given up.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cfp.profile.measure.measurement import Measurement
from cfp.profile.runners.job import Failed, Shares
from cfp.profile.runners.runner import Runner, RunnerLost

T = TypeVar("T")

MORE = 6  # times `repeats` rounds at the most, while `enough_s` is not reached: a bound on the time
AGREEING = 6  # runs of each that agree end the rounds: six bound a median with 95 %
FEW = 3  # runs that make a measurement where more would take too long: the least with a middle
RECORDED = 2  # runs under the profiler, as one may be unlike the others; a program that takes
LONG_S = 0.1  # seconds or more has one: what it is recorded with grows with its time
UNTRIED = 0.5  # of the time left: a first run that takes more leaves none to measure it with
KNOWN = 3.0  # times what a program is known to take, it may take when the budget ends: more
# would keep whoever set the budget waiting, less would take a busy machine for a hang
SHARES_S = 10.0  # seconds that recording programs that just ran may take after the budget's end:
# without them nothing is said of communication
UNMARKED_S = 0.5  # what ran before does not slow down a run of this length: `bench.following`


class OutOfTime(Exception):
    """The budget is spent."""


def seconds_left(deadline: float) -> float:
    """Returns the seconds until the deadline; raises `OutOfTime` if there are none."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise OutOfTime
    return left_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How thoroughly to measure.

    `wave` programs are compiled at once and run in turn. Rounds go on after `repeats`, up to `MORE`
    times as many, until there were `enough_s` seconds of them for every program. They end early,
    and so does warming up, once the last runs of every program differ by less than `steady`. A
    program that ran `fewest` times and for `plenty_s` seconds sits out the rest: a second of
    running has most of the machine's noise averaged already. With `follows`, for steps that are
    compared with one another, a program that takes less than `UNMARKED_S` runs twice in its turn
    and the second run counts: it follows itself, as a step does in training; and none sits out
    before all may. Where the deadline is too near for all of them, the last are left out. `hang_s`
    is how long a run may take before the worker counts as hung, if nothing slower is known; near
    the end of the budget it is less (`Rounds`).
    """

    warmups: int = 5
    repeats: int = 10
    enough_s: float = 0.0
    steady: float = 0.0
    fewest: int = FEW
    plenty_s: float = float("inf")
    cutoff: float = 2.5  # no less than `regress.FAR`: what the model is fitted to is measured well
    follows: bool = False
    wave: int = 4
    hang_s: float = 60.0


# Plans within a few percent count as equal (`confidence.EQUIVALENT`), so 2 % is steady enough.
USUAL = Effort(steady=0.02, plenty_s=1.0)


@dataclass(frozen=True, slots=True)
class Anchor:
    key: str
    usual_s: float


@dataclass
class Rounds:
    """`limits` say how long a run may take, on the machine as usual, before it is given up.

    No run begins after the `deadline`. A run that does not end is waited for until the budget does
    (`runner.ends`); the first run of a program until half of what is left is over, so that there is
    time for the others. Such an end is `RunnerLost` from outside: it may have been a slow program.
    """

    runner: Runner
    effort: Effort
    anchor: Anchor | None
    limits: Mapping[str, float]
    deadline: float

    def __post_init__(self) -> None:
        self._warm: dict[str, list[float]] = {}
        self._runs: dict[str, list[float]] = {}
        self._failed: dict[str, str] = {}
        self._cut: set[str] = set()
        self._left_out: set[str] = set()
        self._anchor_runs: list[float] = []
        self._draw = random.Random(0)

    def run(self, keys: Sequence[str]) -> dict[str, Measurement]:
        """Returns a measurement of each that is not left out, without what the caller knows of it.

        No run begins after the deadline: raises `OutOfTime` if a program then has too few.
        """
        self._warm = {key: [] for key in keys}
        self._runs = {key: [] for key in keys}
        self._run_anchor()  # how slow the machine is, before anything is given up
        for _ in range(self.effort.warmups):
            going = self._going(self._warm, 2, self.effort.plenty_s / 4)
            if not going or self._steady(self._warm, going, 2):
                break
            self._round(self._warm, going)
        enough = min(FEW, self.effort.repeats)
        if self.effort.follows:
            self._leave_out(enough + 1)  # the last under the profiler
        start = time.monotonic()
        for done in range(self.effort.repeats * MORE):
            spent_s = time.monotonic() - start
            if done >= self.effort.repeats and spent_s >= self.effort.enough_s * len(keys):
                break
            going = self._going(self._runs, self.effort.fewest, self.effort.plenty_s)
            if not going or self._steady(self._runs, going, AGREEING):
                break
            self._run_anchor()
            self._round(self._runs, going)
        if any(len(self._runs[key]) < enough for key in self._live()):
            raise OutOfTime
        shares: Mapping[str, Shares] = {}
        if whole := self._live():
            listed = [key for key in whole for _ in range(self._traced(key))]
            left_s = max(self.runner.ends - time.monotonic(), SHARES_S)
            ask = functools.partial(self.runner.time_shares, listed)
            shares = self._ask(ask, 2 * self._patience(), left_s)
        drift, sd = self._drift(), self._drift_sd()
        return {
            key: replace(self._measured(key), drift=drift, drift_sd=sd, shares=shares.get(key))
            for key in keys
            if key not in self._left_out
        }

    def _live(self) -> list[str]:
        over = self._failed.keys() | self._cut | self._left_out
        return [key for key in self._runs if key not in over]

    def _leave_out(self, turns: int) -> None:
        """Leaves out programs that there is no time for so many turns of. The first is kept: where
        the deadline is too near for it, it may have what is left of the budget."""
        left_s = self.deadline - time.monotonic()
        for number, key in enumerate(self._live()):
            run_s = self._warm[key][-1] if self._warm[key] else float("inf")
            needs_s = runs_in_a_turn(run_s) * turns * run_s
            if needs_s > left_s and number == 0:
                self.deadline = self.runner.ends
            if needs_s <= left_s or number == 0:
                left_s -= needs_s
            else:
                self._left_out.add(key)

    def _going(self, runs: Mapping[str, list[float]], fewest: int, plenty_s: float) -> list[str]:
        """Returns the programs for which more runs are worth what they cost."""
        live = self._live()
        going = [key for key in live if not _plenty(runs[key], fewest, plenty_s)]
        return live if going and self.effort.follows else going

    def _round(self, into: Mapping[str, list[float]], order: list[str]) -> None:
        self._draw.shuffle(order)
        for key in order:
            if time.monotonic() >= self.deadline or self._too_long(key):
                return
            answer = self._turn(key)
            if isinstance(answer, Failed):
                self._failed[key] = answer.reason
                continue
            into[key].append(answer)
            seen = self._warm[key][1:] + self._runs[key]  # the first run also loads
            limit = self.limits.get(key, float("inf")) * self._drift()
            if len(seen) >= 2 and min(seen) > limit:
                self._cut.add(key)

    def _too_long(self, key: str) -> bool:
        """Returns whether a run would end after the budget, by what the program took before."""
        seen = [*self._warm[key], *self._runs[key]]
        return bool(seen) and time.monotonic() + min(seen) > self.runner.ends

    def _turn(self, key: str) -> float | Failed:
        seen = [*self._warm[key], *self._runs[key]]
        answer = self._run(key, seen)
        follows = len(self._runs) == 1 and self.anchor is None  # itself, as it is
        if isinstance(answer, Failed) or not self.effort.follows or follows:
            return answer
        if runs_in_a_turn(answer) == 1:
            return answer
        return self._run(key, [*seen, answer])

    def _run(self, key: str, seen: Sequence[float]) -> float | Failed:
        """Runs a program that took as long as was `seen`."""
        left_s = self.runner.ends - time.monotonic()
        left_s = max(left_s, KNOWN * max(seen)) if seen else UNTRIED * left_s
        return self._ask(functools.partial(self.runner.run, key), self._patience(), left_s)

    def _ask(self, call: Callable[[float], T], usual_s: float, left_s: float) -> T:
        """Calls the runner with the time that it may take: as usual, or what the budget leaves."""
        try:
            return call(max(min(usual_s, left_s), 0.0))
        except RunnerLost as lost:
            if lost.hung and left_s < usual_s:
                reason = f"{lost.reason}, near the end of the budget"
                raise RunnerLost(reason, lost.during, hung=True, outside=True) from None
            raise

    def _steady(self, runs: Mapping[str, list[float]], keys: Sequence[str], count: int) -> bool:
        """Returns whether the last runs of each agree, so that more would tell nothing new."""
        last = [runs[key][-count:] for key in keys]
        return all(
            len(some) == count and max(some) - min(some) < self.effort.steady * min(some)
            for some in last
        )

    def _traced(self, key: str) -> int:
        return 1 if statistics.median(self._runs[key]) >= LONG_S else RECORDED

    def _run_anchor(self) -> None:
        if self.anchor is None or not self._live() or time.monotonic() >= self.deadline:
            return
        if time.monotonic() + self.anchor.usual_s > self.runner.ends:
            return
        if _plenty(self._anchor_runs, self.effort.fewest, self.effort.plenty_s):
            return
        if not self._anchor_runs:
            self._run(self.anchor.key, [self.anchor.usual_s])  # warm again
        answer = self._run(self.anchor.key, [self.anchor.usual_s, *self._anchor_runs])
        if isinstance(answer, Failed):
            self.anchor = None
        else:
            self._anchor_runs.append(answer)

    def _drift(self) -> float:
        if self.anchor is None or not self._anchor_runs:
            return 1.0
        return statistics.median(self._anchor_runs) / self.anchor.usual_s

    def _drift_sd(self) -> float:
        """Returns by how much the drift varies by chance, as far as the anchor's runs tell: the
        median varies by a quarter more than their mean."""
        runs = self._anchor_runs
        if self.anchor is None or len(runs) < 2:
            return 0.0
        return 1.25 * statistics.stdev(runs) / math.sqrt(len(runs)) / statistics.median(runs)

    def _measured(self, key: str) -> Measurement:
        if key in self._failed:
            return Measurement(key, "", failed=self._failed[key])
        if key in self._cut:
            runs_s = (*self._warm[key][1:], *self._runs[key])
            return Measurement(key, "", runs_s=runs_s, stopped_early=True)
        return Measurement(key, "", runs_s=tuple(self._runs[key]))

    def _patience(self) -> float:
        runs = [*self._warm.values(), *self._runs.values(), self._anchor_runs]
        return max(self.effort.hang_s, 20 * max((max(r) for r in runs if r), default=0.0))


def runs_in_a_turn(run_s: float) -> int:
    """Returns how often a program runs in its turn, so that it follows itself."""
    return 2 if run_s < UNMARKED_S else 1


def _plenty(runs: Sequence[float], fewest: int, seconds: float) -> bool:
    return len(runs) >= fewest and sum(runs) >= seconds
