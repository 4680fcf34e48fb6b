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
        self._spent: dict[str, float] = {}

    def timed(self, stage: str, run: Callable[[], T]) -> T:
        """Runs a stage and returns what it returns. A stage that runs again, or that ends with an
        error, counts with all that it took."""
        start = time.monotonic()
        try:
            return run()
        finally:
            self._spent[stage] = self._spent.get(stage, 0.0) + time.monotonic() - start

    def spent(self) -> tuple[Spent, ...]:
        """Returns the stages so far, and all else since the start."""
        rest_s = max(time.monotonic() - self._start - sum(self._spent.values()), 0.0)
        stages = (Spent(stage, seconds) for stage, seconds in self._spent.items())
        return (*stages, Spent("all else", rest_s))
