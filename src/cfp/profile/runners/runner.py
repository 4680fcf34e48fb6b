"""Who runs programs: the one interface between deciding what to measure and doing it.

A runner compiles in the background and runs one program at a time, when told to. It decides
nothing: what to compile, in which order to run, when to stop is the caller's. So a runner over
several processes only has to pass every call on to all of them, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cfp.profile.runners.job import Compiled, Failed, Job, Shares


class RunnerLost(Exception):
    """The runner died or hung and has been started again, empty.

    `reason` is one line for people; `during` are the programs it was busy with. One that `hung` did
    not answer in time: it may have waited for another. An end from `outside` (SIGKILL, SIGTERM; the
    kernel's SIGKILL for want of memory looks the same; the end of the budget) says nothing certain
    of those programs.
    """

    def __init__(
        self, reason: str, during: Sequence[str], *, hung: bool = False, outside: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.during = tuple(during)
        self.hung = hung
        self.outside = outside


class Runner(Protocol):
    """Any call may raise `RunnerLost`. The budget `ends` at a time of `time.monotonic()`: no wait
    for a worker goes on after it."""

    ends: float

    def submit(self, job: Job) -> None:
        """Starts compiling and returns at once."""
        ...

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        """Returns what has been compiled since the last call, and waits for one if any is under
        way."""
        ...

    def run(self, key: str, timeout_s: float) -> float | Failed:
        """Runs a compiled program once: seconds until the last device is done."""
        ...

    def time_shares(self, keys: Sequence[str], timeout_s: float) -> Mapping[str, Shares]:
        """Runs compiled programs under the profiler, as often as they are listed; what it has no
        answer for is left out."""
        ...

    def drop(self, keys: Sequence[str]) -> None:
        """Frees what the programs hold."""
        ...

    def close(self) -> None: ...
