"""The time that planning may take, and every deadline that follows from it.

    start ........... explored ..... profiled ........... chosen ............ ends
      options of        what else is    full steps, to        the chosen one
      segments          measured        choose one            on fresh rounds

Until there is a plan nothing is held back: the first option of every segment may take all of the
budget. What that took tells what a full step will take (`FullStep`), and the deadlines follow:

    profiled = ends - max(SURE * one full step, what all of them take, within LEFT .. LEFT_AT_MOST)
    explored = start + EXPLORED * (profiled - start)

Full steps are therefore what a budget ends with, and the best prediction has its own even where
there is time for no other: if that is being compiled when the budget ends, it is waited for, and
may run for `OVERRUN` of it. Nothing begins after its deadline, and nothing begins that is
expected to end after it, so a budget is overrun by a compilation that is under way and a tenth.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from cfp.errors import CfpError
from cfp.profile.measure.rounds import AGREEING, FEW, runs_in_a_turn

LEFT = 0.3  # of the budget at the least for full steps, which may take longer than expected
LEFT_AT_MOST = 0.5  # of it for all full steps: what they are to compare has to be found first
EXPLORED = 0.8  # of the time before full steps: reshardings and training state need the rest
SURE = 1.25  # times what one full step is expected to take: that is a sum over its segments
OVERRUN = 0.1  # of the budget: a full step that was compiled when it ended may run for this
# a full step, measured:
WARMUPS = 1  # rounds: the first run of a program also loads it
CHOOSING_S = 2.0  # of runs of each step, on which the choice rests
ROUNDS = 16  # that a plan is confirmed on. 12 of them must agree to tell two plans apart, as they
# must of 15: with the same noise 16 show one tie in two more (tests: `test_confidence`)
CONFIRMING_S = 1.0  # seconds of runs of each step that is confirmed, at the least, so that a
# short step is not judged by one moment of the machine
MOST_ROUNDS = 60  # that a step may run for `CHOOSING_S` or `CONFIRMING_S`, however short it is


@dataclass(frozen=True, slots=True)
class FullStep:
    """What a full step is expected to take: to lower and compile it, and to run it once."""

    compile_s: float
    run_s: float

    @property
    def fewest_s(self) -> float:
        """Returns what it takes to have the fewest runs that make a measurement."""
        return self.compile_s + self._turns_s(FEW, 0.0)

    @property
    def choosing_s(self) -> float:
        """Returns what it takes to measure a step that may be chosen."""
        return self.compile_s + self._turns_s(AGREEING, CHOOSING_S)

    @property
    def confirming_s(self) -> float:
        """Returns what it takes to measure a step on fresh rounds, compiling it included: on as
        many as bound its time. Up to `ROUNDS` are run in what is left of the budget."""
        return self.compile_s + self._turns_s(AGREEING, CONFIRMING_S)

    def _turns_s(self, fewest: int, enough_s: float) -> float:
        """Returns the time of warming up, of at least `fewest` turns and `enough_s` seconds, and of
        the run whose time shares are recorded."""
        turn_s = runs_in_a_turn(self.run_s) * self.run_s
        turns_s = max(fewest * turn_s, min(enough_s, MOST_ROUNDS * turn_s))
        return WARMUPS * turn_s + turns_s + self.run_s


@dataclass(frozen=True, slots=True)
class Budget:
    """`seconds` from the moment `start` of `time.monotonic()`; infinite where there is no limit.

    `choosing` full steps will be measured to choose one, and `confirming` on fresh rounds. What
    `one` of them takes is None until it is known. The compiler makes `abreast` of them in the time
    of one.
    """

    start: float
    seconds: float = math.inf
    choosing: int = 0
    confirming: int = 0
    one: FullStep | None = None
    abreast: int = 1

    @staticmethod
    def of(seconds: float | None) -> Budget:
        """Returns a budget that begins now; None is no limit."""
        if seconds is not None and not seconds > 0:
            raise CfpError(f"`budget` is {seconds:g} s: give a time such as '5m', or none.")
        return Budget(time.monotonic(), math.inf if seconds is None else seconds)

    def followed_by(self, choosing: int, confirming: int) -> Budget:
        """Returns the budget of a run that ends with so many full steps."""
        return replace(self, choosing=choosing, confirming=confirming)

    def knowing(self, one: FullStep) -> Budget:
        """Returns the budget with what a full step is expected to take."""
        return replace(self, one=one)

    @property
    def limited(self) -> bool:
        return self.seconds < math.inf

    @property
    def ends(self) -> float:
        return self.start + self.seconds

    @property
    def profiled(self) -> float:
        """Returns when full steps must begin."""
        return self.ends - self._reserve_s()

    @property
    def explored(self) -> float:
        """Returns when exploring options must end."""
        return self.start + EXPLORED * (self.profiled - self.start)

    def chosen(self) -> float:
        """Returns when the full steps that one is chosen by must end, if they begin now."""
        now, steps = time.monotonic(), self.choosing + self.confirming
        if not self.limited or not steps:
            return self.ends
        return now + (self.ends - now) * self.choosing / steps

    def left_s(self) -> float:
        return self.ends - time.monotonic()

    @property
    def late(self) -> float:
        """Returns until when a full step may run that was compiled just now, or at the end."""
        return max(self.ends, time.monotonic() + OVERRUN * self.seconds)

    def compiles(self) -> bool:
        """Returns whether there is time to compile a full step."""
        return self.left_s() > (0.0 if self.one is None else self.one.compile_s)

    def _reserve_s(self) -> float:
        if not self.limited or not self.choosing or self.one is None:
            return 0.0
        all_s = self.choosing * self.one.choosing_s + self.confirming * self.one.confirming_s
        beside = max(self.confirming - 1, 0)  # the chosen one is held compiled (`Campaign.holding`)
        times = math.ceil(self.choosing / self.abreast) + math.ceil(beside / self.abreast)
        all_s -= (self.choosing + self.confirming - times) * self.one.compile_s
        within_s = min(max(all_s, LEFT * self.seconds), LEFT_AT_MOST * self.seconds)
        return min(max(within_s, SURE * self.one.fewest_s), self.seconds)
