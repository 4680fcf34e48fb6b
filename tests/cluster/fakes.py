"""A team in one process: links are socket pairs, each member a thread with a scripted runner."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cfp.cluster.link import Inbox, Link, LinkLost
from cfp.cluster.team import Team
from cfp.profile.job import Compiled, Failed, Job, Memory, Shares
from cfp.profile.member import Member
from cfp.profile.runner import RunnerLost
from cfp.profile.team_runner import TeamRunner

MEMORY = Memory(1, 2, 3, 0)
Answer = float | Failed | RunnerLost | str  # a string: "hang"


class Scripted:
    """A runner whose runs answer what `script` says of a key."""

    def __init__(self, process: int, script: Mapping[str, Answer], log: list[str]) -> None:
        self._process, self._script, self._log = process, script, log
        self._done: list[Compiled | Failed] = []
        self._killed = threading.Event()

    def start(self) -> None:
        self._log.append(f"start {self._process}")

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
        if answer == "hang":
            self._killed.wait(timeout_s)
            raise RunnerLost("killed" if self._killed.is_set() else "hung", [key])
        assert not isinstance(answer, str)
        return answer

    def trace(self, keys: Sequence[str], timeout_s: float) -> Mapping[str, Shares]:
        return {key: Shares(1.0 + self._process, 2.0, 0.0) for key in keys}

    def drop(self, keys: Sequence[str]) -> None: ...

    def close(self) -> None:
        self.kill()


def job(key: str) -> Job:
    return Job(key, f"program {key}", b"", ())


def make_team(index: int, hosts: tuple[str, ...], links: dict[int, Link]) -> Team:
    team = Team(index, hosts, links, Inbox())
    for process, link in links.items():
        link.start(team.inbox.from_(process))
    return team


@contextlib.contextmanager
def team_of(
    scripts: Sequence[Mapping[str, Answer]],
) -> Iterator[tuple[TeamRunner, Team, list[str], dict[int, Link]]]:
    """The leader's runner and team, what was run where, and the followers' ends of the links."""
    hosts = tuple(f"box{i}" for i in range(len(scripts)))
    ours: dict[int, Link] = {}
    theirs: dict[int, Link] = {}
    for i in range(1, len(scripts)):
        ours[i], theirs[i] = _link()
    log: list[str] = []

    def opens(process: int) -> Callable[[int], Any]:
        return lambda port: Scripted(process, scripts[process], log)

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


def _follow(team: Team, open_runner: Callable[[int], Any]) -> None:
    member = Member(open_runner, lambda message: team.links[0].send(*message))

    def receive(timeout_s: float | None) -> tuple[Any, ...] | None:
        got = team.inbox.get(timeout_s)
        if got is None:
            return None
        return ("result", None) if got[1] is None else got[1]

    with contextlib.suppress(LinkLost):  # the test is over
        member.serve(receive)


def _link() -> tuple[Link, Link]:
    sockets = socket.socketpair()
    made: dict[int, Link] = {}

    def make(i: int) -> None:
        made[i] = Link(sockets[i], b"secret", accepts=i == 0)

    thread = threading.Thread(target=make, args=(1,))
    thread.start()
    make(0)
    thread.join(5)
    return made[0], made[1]


def compile_all(runner: TeamRunner, *keys: str) -> list[Compiled | Failed]:
    for key in keys:
        runner.submit(job(key))
    found: list[Compiled | Failed] = []
    deadline = time.monotonic() + 10
    while len(found) < len(keys) and time.monotonic() < deadline:
        found += runner.finished(1.0)
    return found
