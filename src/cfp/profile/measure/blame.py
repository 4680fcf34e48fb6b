"""Which programs were at work when the worker ended, how often, and whose doing that was."""

from __future__ import annotations

from cfp.profile.runners.runner import RunnerLost

STRIKES = 2  # ends of the worker before a program counts as failed: once may be an accident
TRIED_AGAIN = ", which may not be the program's doing: the next run tries it again"


class Blame:
    """Counts the ends of the worker, program by program."""

    def __init__(self) -> None:
        self._own: dict[str, list[bool]] = {}  # each end: whether it was the program's own doing

    def strike(self, key: str, lost: RunnerLost) -> None:
        self._own.setdefault(key, []).append(not lost.outside)

    def suspected(self, key: str) -> bool:
        """Returns whether the program was at work at least once when the worker ended."""
        return key in self._own

    def out(self, key: str) -> bool:
        """Returns whether the program is left out of this run from now on."""
        return len(self._own.get(key, ())) >= STRIKES

    def certain(self, key: str) -> bool:
        """Returns whether every end was the program's own doing, which is a failure to record."""
        return all(self._own[key])
