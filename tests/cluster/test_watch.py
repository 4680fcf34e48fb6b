"""Processes that end together do; one that is gone before is named."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cfp.cluster import watch
from cfp.cluster.connection import Inbox
from cfp.cluster.team import Team
from cfp.cluster.watch import watched
from cfp.errors import CfpError
from tests.cluster.test_connection import connect_pair

HOSTS = ("boxa", "boxb", "boxc")


def make_teams() -> list[Team]:
    """Returns one team, as each of its three processes has it."""
    inboxes = [Inbox() for _ in HOSTS]
    to_others, to_leader = {}, {}
    for i in (1, 2):
        to_others[i], to_leader[i] = connect_pair()
        to_others[i].start(inboxes[0].from_(i))
        to_leader[i].start(inboxes[i].from_(0))
    leader = Team(0, HOSTS, to_others, inboxes[0], b"s")
    return [leader, *(Team(i, HOSTS, {0: to_leader[i]}, inboxes[i], b"s") for i in (1, 2))]


def run(teams: list[Team], *bodies: Callable[[], None]) -> list[list[str]]:
    """What each was told when it had to end. A process closes its connections as soon as it
    is done."""
    said: list[list[str]] = [[] for _ in teams]

    def process(i: int) -> None:
        with watched(teams[i], said[i].append):
            bodies[i]()
        teams[i].close()

    threads = [threading.Thread(target=process, args=(i,), daemon=True) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    return said


@pytest.mark.parametrize("_", range(30))
def test_all_end_together(_: int) -> None:
    assert run(make_teams(), *[lambda: None] * 3) == [[], [], []]


class Heard:
    """Why a process had to end. Until then it is in a step that never does."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._told = threading.Event()

    def __call__(self, reason: str) -> None:
        self.said.append(reason)
        self._told.set()

    def wait(self) -> bool:
        return self._told.wait(5)

    def trains(self, team: Team) -> None:
        def process() -> None:
            with watched(team, self):
                self.wait()

        threading.Thread(target=process, daemon=True).start()


def test_all_hear_why_one_has_ended() -> None:
    """They hear it from the leader, if it was another that ended."""
    teams = make_teams()
    others = {0: Heard(), 2: Heard()}
    for i, heard in others.items():
        heard.trains(teams[i])
    with pytest.raises(CfpError), watched(teams[1], lambda reason: None):
        raise CfpError("The loss is nan.")
    for heard in others.values():
        assert heard.wait()
        assert heard.said == ["Lost process 1 on boxb: The loss is nan."]
    for team in teams:
        team.close()


def test_one_that_is_interrupted_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 0.2)
    teams, heard = make_teams(), Heard()
    heard.trains(teams[0])
    with watched(teams[1], lambda reason: None) as farewell:
        farewell.hurry("Interrupted after 3 steps.")
    assert heard.wait()
    assert heard.said == ["Lost process 1 on boxb: Interrupted after 3 steps."]
    for team in teams:
        team.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_is_gone_is_named(victim: int) -> None:
    teams, heard = make_teams(), Heard()
    watcher = teams[1 - victim]
    with watched(watcher, heard):
        teams[victim].close()
        assert heard.wait()
    assert heard.said[0].startswith(f"Lost process {victim} on {HOSTS[victim]}")
    for team in teams:
        team.close()
