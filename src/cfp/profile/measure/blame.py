"""Which programs were at work when the worker ended, how often, and whose doing that was."""

from __future__ import annotations

from collections.abc import Sequence

from cfp.profile.programs.requests import Request
from cfp.profile.runners.runner import RunnerLost

STRIKES = 2  # ends of the worker before a program counts as failed: once may be an accident
TRIED_AGAIN = ", which may not be the program's doing: the next run tries it again"


class Blame:
    """Counts the ends of the worker, program by program."""

    def __init__(self) -> None:
        self._own: dict[str, list[bool]] = {}  # each end: whether it was the program's own doing

    def suspected(self, key: str) -> bool:
        """Returns whether the program was at work at least once when the worker ended."""
        return key in self._own

    def certain(self, key: str) -> bool:
        """Returns whether every end was the program's own doing, which is a failure to record."""
        return all(self._own[key])

    def strikes_out(self, anchor: str, lost: RunnerLost, left: Sequence[Request]) -> bool:
        """Counts an end of the worker at which only the anchor was at work; returns whether the
        anchor is not run any more."""
        if anchor not in lost.during or any(request.key in lost.during for request in left):
            return False
        self._strike(anchor, lost)
        return self._out(anchor)

    def judge(
        self, lost: RunnerLost, left: Sequence[Request], *, alone: bool
    ) -> tuple[list[Request], list[tuple[Request, ...]]]:
        """Returns the programs of a wave that failed with the worker, and the waves to try again:
        each one under suspicion `alone`, then the others together. A program whose wait the
        budget's end cut short is not waited for twice."""
        suspects = [request for request in left if request.key in lost.during]
        for request in suspects:
            self._strike(request.key, lost)
        cut_short = lost.hung and lost.outside and len(suspects) == 1
        failed = [one for one in suspects if cut_short or (alone and self._out(one.key))]
        again = [(request,) for request in suspects if request not in failed]
        others = tuple(request for request in left if request not in suspects)
        return failed, [*again, *([others] if others else [])]

    def _strike(self, key: str, lost: RunnerLost) -> None:
        self._own.setdefault(key, []).append(not lost.outside)

    def _out(self, key: str) -> bool:
        return len(self._own.get(key, ())) >= STRIKES
