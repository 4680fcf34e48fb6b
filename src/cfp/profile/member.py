"""One process of a team at work: does what the leader says with a runner of its own.

The leader says                      a member answers
    open, generation, port               opened, generation
    submit, job                          later: finished, generation, Compiled | Failed
    run, number, key, timeout            answer, number, seconds | Failed
    trace, number, keys, timeout         answer, number, {key: Shares}
    drop, keys
    close                                (its worker is gone)
    result, value                        (the run is over)

A generation is one worker in every process, started together: when one of them is lost, the answer
is `lost, generation, reason, keys it was busy with, whether it hung`, and the leader opens the
next. What cannot be helped by that is `stopped, generation, reason`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from cfp.cluster import TeamLost
from cfp.errors import CfpError
from cfp.profile.runner import Runner, RunnerLost

POLL_S = 0.05  # between looks at what has been compiled


class Startable(Runner, Protocol):
    def start(self) -> None: ...

    def kill(self) -> None: ...


class Member:
    """`open_runner` makes the runner of a generation, given a port of the leader's."""

    def __init__(
        self, open_runner: Callable[[int], Startable], send: Callable[[tuple[Any, ...]], None]
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

    def serve(self, receive: Callable[[float | None], tuple[Any, ...] | None]) -> Any:
        """Until there is a result, which is returned. `receive` waits so many seconds, or for ever,
        for a message."""
        try:
            while True:
                message = receive(POLL_S if self._compiling else None)
                if message is not None and message[0] == "result":
                    return message[1]
                try:
                    if message is not None:
                        self._do(*message)
                    if self._runner is not None and self._compiling:
                        for answer in self._runner.finished(0.0):
                            self._compiling.discard(answer.key)
                            self._send(("finished", self._generation, answer))
                except RunnerLost as lost:
                    self._close()
                    told = (lost.reason, lost.during, lost.hung)
                    self._send(("lost", self._generation, *told))
                except TeamLost:
                    raise
                except (CfpError, RuntimeError, OSError) as error:
                    self._close()
                    self._send(("stopped", self._generation, str(error)))
        finally:
            self._close()

    def kill(self) -> None:
        """From any thread: ends what is under way, for good."""
        self._over = True
        self.kill_worker()

    def kill_worker(self) -> None:
        """From any thread: ends what is under way."""
        with self._lock:
            if self._runner is not None:
                self._runner.kill()

    def _do(self, kind: str, *given: Any) -> None:
        if kind == "open":
            self._open(*given)
        elif kind == "close":
            self._close()
        elif self._runner is not None:  # else it was lost, and the leader does not know it yet
            self._ask(self._runner, kind, *given)

    def _open(self, generation: int, port: int) -> None:
        self._close()
        self.doing = "starting the workers"
        self._generation = generation
        runner = self._open_runner(port)
        with self._lock:
            if self._over:
                return
            self._runner = runner
        runner.start()
        self._send(("opened", generation))

    def _ask(self, runner: Startable, kind: str, *given: Any) -> None:
        match kind, given:
            case "submit", (job,):
                self._names[job.key] = job.name
                self._compiling.add(job.key)
                self.doing = f"compiling {job.name}"
                runner.submit(job)
            case "run", (number, key, timeout_s):
                self.doing = f"running {self._names[key]}"
                self._send(("answer", number, runner.run(key, timeout_s)))
            case "trace", (number, keys, timeout_s):
                self.doing = f"tracing {self._names[keys[0]]}"
                self._send(("answer", number, dict(runner.trace(keys, timeout_s))))
            case "drop", (keys,):
                self._compiling.difference_update(keys)
                runner.drop(keys)
            case _:
                raise RuntimeError(f"no such request: {kind}")

    def _close(self) -> None:
        with self._lock:
            runner, self._runner = self._runner, None
        self._compiling.clear()
        if runner is not None:
            runner.close()
