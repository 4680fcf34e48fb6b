"""Where planning spends its time, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cfp.plan.evidence import Spent

T = TypeVar("T")


class Stopwatch:
    """What each stage takes, from `start` on."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._spent: list[Spent] = []

    def timed(self, stage: str, run: Callable[[], T]) -> T:
        """Runs a stage and returns what it returns."""
        start = time.monotonic()
        found = run()
        self._spent.append(Spent(stage, time.monotonic() - start))
        return found

    def spent(self) -> tuple[Spent, ...]:
        """Returns the stages so far, and all else since the start."""
        known = sum(one.seconds for one in self._spent)
        rest_s = max(time.monotonic() - self._start - known, 0.0)
        return (*self._spent, Spent("all else", rest_s))
