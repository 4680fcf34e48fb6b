"""A runner in this very process, for devices that only one process can open (TPUs).

A program that crashes takes the caller with it, and one that hangs hangs the caller: timeouts
cannot be kept here, and `RunnerLost` is never raised. Where devices can be opened twice, use
`cfp.profile.runners.process`.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Sequence

from jax.sharding import Mesh

from cfp.profile.runners.job import Compiled, Failed, Job, Shares
from cfp.profile.runners.local_devices import default_threads, platform_of
from cfp.profile.runners.session import Session


class InProcessRunner:
    """Implements `cfp.profile.runners.runner.Runner` over a session."""

    def __init__(self, mesh: Mesh, compile_threads: int | None = None) -> None:
        self.ends = math.inf  # nobody can end what this process does itself
        self._done: queue.SimpleQueue[Compiled | Failed] = queue.SimpleQueue()
        self._under_way: set[str] = set()
        self._session = Session(
            mesh, compile_threads or default_threads(platform_of(mesh)), self._done.put
        )

    def start(self) -> None:
        """Does nothing: there is nothing to start."""

    def kill(self) -> None:
        """Does nothing: nobody can end what this process does itself."""

    def submit(self, job: Job) -> None:
        self._under_way.add(job.key)
        self._session.submit(job)

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        """Returns at once with the programs that are compiled, or when nothing is under way."""
        found: list[Compiled | Failed] = []
        deadline = time.monotonic() + timeout_s
        while self._under_way:
            left = 0.0 if found else max(0.0, deadline - time.monotonic())
            try:
                answer = self._done.get(timeout=left)
            except queue.Empty:
                break
            if answer.key in self._under_way:  # else it was dropped in the meantime
                self._under_way.remove(answer.key)
                found.append(answer)
        return found

    def run(self, key: str, timeout_s: float) -> float | Failed:
        return self._session.run(key)

    def time_shares(self, keys: Sequence[str], timeout_s: float) -> dict[str, Shares]:
        return self._session.time_shares(keys)

    def drop(self, keys: Sequence[str]) -> None:
        self._under_way.difference_update(keys)
        self._session.drop(keys)

    def close(self) -> None:
        self._under_way.clear()
        self._session.close()

    def __enter__(self) -> InProcessRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
