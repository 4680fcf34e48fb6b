"""One process of a team at work: does what the leader says with a runner of its own.

What the two say is in `cfp.profile.runners.messages`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from cfp.cluster import TeamLost
from cfp.cluster.wire import Message
from cfp.errors import CfpError
from cfp.profile.runners.messages import (
    Answered,
    Ask,
    Close,
    Drop,
    Finished,
    Lost,
    Open,
    Opened,
    Result,
    Run,
    Stopped,
    Submit,
    TimeShares,
)
from cfp.profile.runners.runner import Runner, RunnerLost

POLL_S = 0.05  # seconds between looks at what has been compiled, which takes far longer


class Startable(Runner, Protocol):
    def start(self) -> None: ...

    def kill(self) -> None: ...


class Member:
    """One process's part of a team's runner. `open_runner` makes the runner of a generation: it is
    given what the leader says of it."""

    def __init__(
        self, open_runner: Callable[[Open], Startable], send: Callable[[Message], None]
    ) -> None:
        self._open_runner = open_runner
        self._send = send
        self._runner: Startable | None = None
        self._generation = 0
        self._compiling: set[str] = set()
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()
        self._over = False
        self.doing = ""

    def serve(self, receive: Callable[[float | None], Message | None]) -> bytes:
        """Answers the leader until there is a result, which is returned. `receive` waits for a
        message, for the given seconds or for ever."""
        try:
            while True:
                message = receive(POLL_S if self._compiling else None)
                if isinstance(message, Result):
                    return message.value
                try:
                    if message is not None:
                        self._do(message)
                    if self._runner is not None and self._compiling:
                        for answer in self._runner.finished(0.0):
                            self._compiling.discard(answer.key)
                            self._send(Finished(self._generation, answer))
                except RunnerLost as lost:
                    self._close()
                    told = (lost.reason, lost.during, lost.hung, lost.outside)
                    self._send(Lost(self._generation, *told))
                except TeamLost:
                    raise
                except (CfpError, RuntimeError, OSError) as error:
                    self._close()
                    self._send(Stopped(self._generation, str(error)))
        finally:
            self._close()

    def kill(self) -> None:
        """Ends what is under way for good, from any thread."""
        self._over = True
        self.kill_worker()

    def kill_worker(self) -> None:
        """Ends what is under way, from any thread."""
        with self._lock:
            if self._runner is not None:
                self._runner.kill()

    def _do(self, message: Message) -> None:
        if isinstance(message, Open):
            self._open(message)
        elif isinstance(message, Close):
            self._close()
        elif self._runner is not None:  # else it was lost, and the leader does not know it yet
            self._ask(self._runner, message)

    def _open(self, message: Open) -> None:
        self._close()
        self.doing = "starting the workers"
        self._generation = message.generation
        runner = self._open_runner(message)
        left_s = message.within_s
        runner.ends = math.inf if left_s is None else time.monotonic() + left_s
        with self._lock:
            if self._over:
                return
            self._runner = runner
        runner.start()
        self._send(Opened(message.generation))

    def _ask(self, runner: Startable, message: Message) -> None:
        match message:
            case Submit(job=job):
                self._names[job.key] = job.name
                self._compiling.add(job.key)
                self.doing = f"compiling {job.name}"
                runner.submit(job)
            case Ask(number=number, request=Run(key=key), timeout_s=timeout_s):
                self.doing = f"running {self._names[key]}"
                self._send(Answered(number, runner.run(key, timeout_s)))
            case Ask(number=number, request=TimeShares(keys=keys), timeout_s=timeout_s):
                self.doing = f"recording {self._names[keys[0]]}"
                self._send(Answered(number, dict(runner.time_shares(keys, timeout_s))))
            case Drop(keys=keys):
                self._compiling.difference_update(keys)
                runner.drop(keys)
            case _:
                raise RuntimeError(f"no such request: {type(message).__name__}")

    def _close(self) -> None:
        with self._lock:
            runner, self._runner = self._runner, None
        self._compiling.clear()
        if runner is not None:
            runner.close()
