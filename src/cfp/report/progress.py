"""Progress of measuring, on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.status import Status

from cfp.profile import Progress
from cfp.profile.measurement import Measurement
from cfp.report.text import line, time_text

PLAIN_EVERY_S = 5.0  # between lines where no terminal listens


class TerminalProgress(Progress):
    """`with TerminalProgress(console) as progress:`; `budget_s`, if there is one."""

    def __init__(self, console: Console, budget_s: float | None = None) -> None:
        self.console = console
        self.budget_s = budget_s
        self.kept = 0  # measurements made or found
        self._start = time.monotonic()
        self._expected = 0
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
            self._status.update(line(name))
        else:
            self.console.print(line(name), soft_wrap=True)

    def expect(self, programs: int) -> None:
        self._expected = self._done + programs

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

    def waiting(self) -> None:
        self._say("waiting for another planner that measures on these devices", always=True)

    def lost(self, reason: str) -> None:
        self.console.print(line(f"Worker lost ({reason}); starting another."), soft_wrap=True)

    def _say(self, doing: str, always: bool = False) -> None:
        self._doing = doing
        text = f"{self._done}/{self._expected} programs{self._left()}{self._best}: {doing}"
        if self._status is not None:
            self._status.update(line(text))
            return
        now = time.monotonic()
        if always or now - self._last_line >= PLAIN_EVERY_S:
            self._last_line = now
            self.console.print(line(text), soft_wrap=True)

    def _left(self) -> str:
        """About how long what is known to be needed will take, within the budget."""
        spent = time.monotonic() - self._start
        todo = self._expected - self._done
        guess = spent / self._done * todo if self._done else None
        if self.budget_s is not None:
            left = max(self.budget_s - spent, 0.0)
            guess = left if guess is None else min(left, guess)
        return "" if guess is None else f", {guess:.0f} s left"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else "nothing"
