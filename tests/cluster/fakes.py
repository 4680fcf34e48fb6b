"""A team in one process: connections are socket pairs, each member a thread with a scripted
runner."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cfp.cluster.connection import Connection, ConnectionLost, Inbox
from cfp.cluster.team import Team
from cfp.cluster.wire import Message
from cfp.profile.runners.job import Compiled, Failed, Job, Memory, Shares
from cfp.profile.runners.messages import Open, Result
from cfp.profile.runners.runner import RunnerLost
from cfp.profile.runners.team_member import Member
from cfp.profile.runners.team_runner import TeamRunner
from tests.cluster.test_connection import connect_pair

MEMORY = Memory(1, 2, 3, 0)
Answer = float | Failed | RunnerLost | str  # a string: "hang"


class Scripted:
    """A runner whose runs answer what `script` says of a key."""

    def __init__(self, process: int, script: Mapping[str, Answer], log: list[str]) -> None:
        self._process, self._script, self._log = process, script, log
        self._done: list[Compiled | Failed] = []
        self._killed = threading.Event()
        self.ends = math.inf

    def start(self) -> None:
        self._log.append(f"start {self._process}")
        if self._script.get("start") == "hang":
            self._killed.wait(self.ends - time.monotonic())
            raise RunnerLost(
                "the worker did not start before the budget ended", (), hung=True, outside=True
            )

    def kill(self) -> None:
        self._killed.set()

    def submit(self, job: Job) -> None:
        found = self._script.get(f"{job.key}@compile")
        memory = Memory(1 + self._process, 2, 3, 0)
        done = (
            found if isinstance(found, Failed) else Compiled(job.key, 1.0 + self._process, memory)
        )
        self._done.append(done)

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        found, self._done = self._done, []
        return found

    def run(self, key: str, timeout_s: float) -> float | Failed:
        self._log.append(f"{self._process} {key}")
        answer = self._script.get(key, 1.0 + self._process)
        if isinstance(answer, RunnerLost):
            raise answer
        if answer == "silent":  # whatever the time it was given
            self._killed.wait(60)
        if answer in ("hang", "silent"):
            self._killed.wait(timeout_s)
            raise RunnerLost("killed" if self._killed.is_set() else "hung", [key])
        assert not isinstance(answer, str)
        return answer

    def time_shares(self, keys: Sequence[str], timeout_s: float) -> Mapping[str, Shares]:
        return {key: Shares(1.0 + self._process, 2.0, 0.0) for key in keys}

    def drop(self, keys: Sequence[str]) -> None: ...

    def close(self) -> None:
        self.kill()


def job(key: str) -> Job:
    return Job(key, f"program {key}", b"", ())


def make_team(index: int, hosts: tuple[str, ...], connections: dict[int, Connection]) -> Team:
    team = Team(index, hosts, connections, Inbox(), b"secret")
    for process, connection in connections.items():
        connection.start(team.inbox.from_(process))
    return team


@contextlib.contextmanager
def team_of(
    scripts: Sequence[Mapping[str, Answer]],
) -> Iterator[tuple[TeamRunner, Team, list[str], dict[int, Connection]]]:
    """The leader's runner and team, what was run where, and the followers' ends of the
    connections."""
    hosts = tuple(f"box{i}" for i in range(len(scripts)))
    ours: dict[int, Connection] = {}
    theirs: dict[int, Connection] = {}
    for i in range(1, len(scripts)):
        ours[i], theirs[i] = connect_pair()
    log: list[str] = []

    def opens(process: int) -> Callable[[Open], Any]:
        return lambda opened: Scripted(process, scripts[process], log)

    for i in theirs:
        team = make_team(i, hosts, {0: theirs[i]})
        threading.Thread(target=_follow, args=(team, opens(i)), daemon=True).start()
    leader = make_team(0, hosts, ours)
    runner = TeamRunner(leader, opens(0))
    try:
        yield runner, leader, log, theirs
    finally:
        runner.close()
        leader.close()


def _follow(team: Team, open_runner: Callable[[Open], Any]) -> None:
    member = Member(open_runner, team.connections[0].send)

    def receive(timeout_s: float | None) -> Message | None:
        got = team.inbox.get(timeout_s)
        if got is None:
            return None
        return Result(b"") if got[1] is None else got[1]

    with contextlib.suppress(ConnectionLost):  # the test is over
        member.serve(receive)


def compile_all(runner: TeamRunner, *keys: str) -> list[Compiled | Failed]:
    for key in keys:
        runner.submit(job(key))
    found: list[Compiled | Failed] = []
    deadline = time.monotonic() + 10
    while len(found) < len(keys) and time.monotonic() < deadline:
        found += runner.finished(1.0)
    return found
