"""Progress of measuring, on stderr: one line that redraws on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.text import Text

from cfp.profile import Progress
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.progress import left_text
from cfp.report.text import line, time_text

OVERDUE = 0.25  # the least share of the time last told that is shown as left until it is told anew
SPINNER_COLUMNS = 2  # the spinner and a space
PLAIN_EVERY_S = 5.0  # between lines where stderr is no terminal: a log stays short


class TerminalProgress(Progress):
    """Progress on a terminal: `with TerminalProgress(console) as progress:`. `budget_s` is None
    where there is no budget."""

    def __init__(self, console: Console, budget_s: float | None = None) -> None:
        self.console = console
        self.budget_s = budget_s
        self.kept = 0  # measurements made or found
        self._start = time.monotonic()
        self._expected = 0
        self._ahead: tuple[float, float, float] | None = None  # seconds left, as told at a time
        self._done = 0
        self._doing = "starting"
        self._best = ""
        self._status = Status("", console=console) if console.is_terminal else None
        self._last_line = 0.0

    def __enter__(self) -> TerminalProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def stage(self, name: str) -> None:
        if self._status is not None:
            self._status.update(self._fitted(name))
        else:
            self.console.print(line(name), soft_wrap=True)

    def expect(self, programs: int) -> None:
        self._expected = self._done + programs

    def ahead(self, low_s: float, high_s: float) -> None:
        self._ahead = low_s, high_s, time.monotonic()

    def compiling(self, names: Sequence[str]) -> None:
        self._say(f"compiling {_some(names)}")

    def running(self, names: Sequence[str]) -> None:
        self._say(f"running {_some(names)}")

    def loaded(self, count: int) -> None:
        self.kept += count

    def measured(self, measurement: Measurement, best_s: float | None) -> None:
        self._done += 1
        self.kept += 1
        if measurement.failed is not None:
            self.console.print(
                line(f"{measurement.name} does not run: {measurement.failed}"), soft_wrap=True
            )
        elif best_s is not None:
            segment = measurement.name.partition(":")[0]
            self._best = f", best {time_text(best_s)} ({segment})"

    def waiting(self, holder: str) -> None:
        self._say(f"waiting for the devices, held by {holder}", always=True)

    def lost(self, reason: str) -> None:
        self.console.print(line(f"Worker lost ({reason}); starting another."), soft_wrap=True)

    def _say(self, doing: str, always: bool = False) -> None:
        self._doing = doing
        text = f"{self._done}/{self._expected} programs{self._left()}{self._best}: {doing}"
        if self._status is not None:
            self._status.update(self._fitted(text))
            return
        now = time.monotonic()
        if always or now - self._last_line >= PLAIN_EVERY_S:
            self._last_line = now
            self.console.print(line(text), soft_wrap=True)

    def _fitted(self, text: str) -> Text:
        """Returns the text on one line beside the spinner: what redraws must not wrap."""
        made = line(text)
        made.truncate(self.console.width - SPINNER_COLUMNS, overflow="ellipsis")
        return made

    def _left(self) -> str:
        """Returns how long all that is ahead will take, within the budget. The time since it was
        told is subtracted, but a part remains: what takes longer than expected is not over."""
        now = time.monotonic()
        budget_s = math.inf if self.budget_s is None else self.budget_s - (now - self._start)
        budget_s = max(budget_s, 0.0)
        if self._ahead is None:
            return "" if self.budget_s is None else f", at most {budget_s:.0f} s left"
        low_s, high_s, told = self._ahead
        low_s, high_s = (max(one - (now - told), OVERDUE * one) for one in (low_s, high_s))
        return f", {left_text(min(low_s, budget_s), min(high_s, budget_s))} left"


@contextmanager
def shown(progress: Progress | bool | None, budget_s: float | None = None) -> Iterator[Progress]:
    """Gives the progress that a Python function tells: the one it was given, none for False, and by
    default a line on stderr where that is a terminal. True always writes to stderr."""
    if isinstance(progress, Progress):
        yield progress
        return
    console = Console(stderr=True)
    if progress is False or (progress is None and not console.is_terminal):
        yield Progress()
        return
    with TerminalProgress(console, budget_s) as live:
        yield live


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else "nothing"
