"""A runner over the processes of a team: every call goes to all of them, in order.

A program takes as long as in the slowest process. It is compiled when all have compiled it, and has
failed when it failed in one. Where one process fails and the others do not come back (they wait for
it in a collective), where a worker dies or hangs, all workers are ended; the next call starts new
ones. A process whose worker dies says so; when the process itself is gone, so is the run.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cfp.cluster import ConnectionLost, Team
from cfp.cluster.ports import free_port
from cfp.cluster.wire import Message
from cfp.errors import CfpError
from cfp.profile.runners.job import Compiled, Failed, Job, Shares
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
from cfp.profile.runners.runner import RunnerLost
from cfp.profile.runners.team_member import Member, Startable

OPEN_S = 300.0  # seconds for the workers of all processes to start, as for one (`child`)
GRACE_S = 5.0  # seconds for the others, once one has failed or hung: they only have to say so


class TeamRunner:
    """Implements `runners.runner.Runner` on the leader. Its own part is a member in a thread.

    The team stays the caller's, who tells it the result."""

    def __init__(self, team: Team, open_runner: Callable[[Open], Startable]) -> None:
        self._team = team
        self._own: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._member = Member(open_runner, team.inbox.from_(0))
        self._thread = threading.Thread(
            target=self._member.serve, args=(_patient(self._own),), daemon=True
        )
        self._thread.start()
        self._generation = 0
        self._up = False
        self._names: dict[str, str] = {}
        self._parts: dict[
            str, dict[int, Compiled | Failed]
        ] = {}  # answers about programs that are being compiled
        self._ready: list[Compiled | Failed] = []
        self.ends = math.inf

    def submit(self, job: Job) -> None:
        self._open()
        self._parts[job.key] = {}
        self._names[job.key] = job.name
        self._tell(Submit(job))

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        deadline = time.monotonic() + timeout_s
        while self._parts:
            left = 0.0 if self._ready else deadline - time.monotonic()
            self._team.doing = f"compiling {self._names[next(iter(self._parts))]}"
            got = self._hear(left, [*self._parts])
            if got is None:
                break
        found, self._ready = self._ready, []
        return found

    def run(self, key: str, timeout_s: float) -> float | Failed:
        answers = self._ask("running", Run(key), [key], timeout_s)
        failed = {who: a for who, a in answers.items() if isinstance(a, Failed)}
        if failed:
            return Failed(key, self._whose(failed))
        return float(max(answers.values()))

    def time_shares(self, keys: Sequence[str], timeout_s: float) -> Mapping[str, Shares]:
        answers = self._ask("recording", TimeShares(tuple(keys)), keys, timeout_s)
        return {
            key: _mean([found[key] for found in answers.values()])
            for key in keys
            if all(key in found for found in answers.values())
        }

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._parts.pop(key, None)
        self._ready = [answer for answer in self._ready if answer.key not in keys]
        if self._up:
            self._tell(Drop(tuple(keys)))

    def close(self) -> None:
        """Ends all workers, whatever they are doing."""
        self._member.kill()
        self._own.put(Result(b""))
        for connection in self._team.connections.values():
            try:
                connection.send(Close())
            except ConnectionLost:
                continue  # its process ends its worker by itself
        self._up = False
        self._thread.join(GRACE_S)

    def _open(self) -> None:
        if self._up:
            return
        self._generation = self._team.number()
        self._team.doing = "starting the workers"
        left_s = self.ends - time.monotonic()
        within_s = None if math.isinf(left_s) else max(left_s, 0.0)
        self._tell(Open(self._generation, free_port(self._team.listens), within_s))
        waiting = set(range(self._team.count))
        deadline = min(time.monotonic() + OPEN_S, self.ends)
        while waiting:
            try:
                got = self._hear(deadline - time.monotonic(), [])
            except RunnerLost as lost:
                if lost.hung and lost.outside:  # the budget ended
                    raise
                raise CfpError(f"The workers did not start: {lost.reason}.") from None
            if got is None and time.monotonic() >= self.ends:
                reason = "the workers did not start before the budget ended"
                raise self._lost(reason, (), hung=True, outside=True)
            if got is None:
                names = ", ".join(self._team.name(who) for who in sorted(waiting))
                raise CfpError(f"No worker started within {OPEN_S:g} s on {names}.")
            if got[1] == Opened(self._generation):
                waiting.discard(got[0])
        self._up = True

    def _ask(
        self, doing: str, request: Run | TimeShares, keys: Sequence[str], timeout_s: float
    ) -> dict[int, Any]:
        """Returns the answers of all processes."""
        self._open()
        asked = self._team.number()
        self._team.doing = f"{doing} {self._names[keys[0]]}"
        self._tell(Ask(asked, request, timeout_s))
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + timeout_s + GRACE_S  # each sees to its own worker first
        while len(answers) < self._team.count:
            failed = {who: a for who, a in answers.items() if isinstance(a, Failed)}
            try:
                got = self._hear(deadline - time.monotonic(), keys)
            except RunnerLost as lost:
                if lost.hung and failed:  # it waited for the one that failed
                    raise RunnerLost(self._whose(failed), keys) from None
                raise
            if got is None:
                silent = ", ".join(
                    self._team.name(who) for who in range(self._team.count) if who not in answers
                )
                reason = self._whose(failed) if failed else f"no answer from {silent}"
                raise self._lost(reason, keys, hung=not failed)
            match got:
                case who, Answered(number=number, value=value) if number == asked:
                    answers[who] = value
                    if isinstance(value, Failed):
                        deadline = min(deadline, time.monotonic() + GRACE_S)
        return answers

    def _hear(self, timeout_s: float, busy: Sequence[str]) -> tuple[int, Message] | None:
        """Returns the next message, with its effects; None if none comes in time."""
        got = self._team.inbox.get(timeout_s)
        if got is None:
            return None
        who, message = got
        match message:
            case None:
                raise self._team.gone(who)
            case Lost(generation=self._generation) as lost:
                reason = f"{self._team.name(who)}: {lost.reason}"
                during = lost.during or busy
                raise self._lost(reason, during, hung=lost.hung, outside=lost.outside)
            case Stopped(generation=self._generation, reason=reason):
                raise CfpError(f"On {self._team.name(who)}: {reason}")
            case Finished(generation=self._generation, answer=answer):
                self._finish(who, answer)
        return who, message

    def _finish(self, who: int, answer: Compiled | Failed) -> None:
        if answer.key not in self._parts:
            return  # dropped
        parts = self._parts[answer.key]
        parts[who] = answer
        if len(parts) < self._team.count:
            return
        del self._parts[answer.key]
        failed = {who: part for who, part in parts.items() if isinstance(part, Failed)}
        if failed:
            self._ready.append(Failed(answer.key, self._whose(failed)))
            return
        compiled = [part for part in parts.values() if isinstance(part, Compiled)]
        seconds = max(part.seconds for part in compiled)
        memory = max((part.memory for part in compiled), key=lambda memory: memory.total_bytes)
        told = (part.collectives for part in compiled if part.collectives is not None)
        self._ready.append(Compiled(answer.key, seconds, memory, next(told, None)))

    def _whose(self, failed: Mapping[int, Failed]) -> str:
        """Returns why a program failed, and where if it did not fail everywhere."""
        who = min(failed)
        if len(failed) == self._team.count:
            return failed[who].reason
        return f"{self._team.name(who)}: {failed[who].reason}"

    def _lost(
        self, reason: str, during: Sequence[str], *, hung: bool = False, outside: bool = False
    ) -> RunnerLost:
        """Ends the generation."""
        self._up = False
        self._parts.clear()
        self._ready.clear()
        self._member.kill_worker()
        self._tell(Close())
        return RunnerLost(reason, during, hung=hung, outside=outside)

    def _tell(self, message: Message) -> None:
        self._own.put(message)
        self._team.tell(message)


def _patient(
    messages: queue.SimpleQueue[Message],
) -> Callable[[float | None], Message | None]:
    def receive(timeout_s: float | None) -> Message | None:
        try:
            return messages.get(timeout=timeout_s)
        except queue.Empty:
            return None

    return receive


def _mean(shares: Sequence[Shares]) -> Shares:
    count = len(shares)
    return Shares(
        sum(one.compute_s for one in shares) / count,
        sum(one.transfer_s for one in shares) / count,
        sum(one.waiting_s for one in shares) / count,
    )
