"""Processes that end together do; one that is gone before is named."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cfp.cluster import watch
from cfp.cluster.link import Inbox
from cfp.cluster.team import Team
from cfp.cluster.watch import watched
from cfp.errors import CfpError
from tests.cluster.test_link import linked

HOSTS = ("boxa", "boxb", "boxc")


def make_teams() -> list[Team]:
    """Of three processes."""
    inboxes = [Inbox() for _ in HOSTS]
    to_others, to_leader = {}, {}
    for i in (1, 2):
        to_others[i], to_leader[i] = linked()
        to_others[i].start(inboxes[0].from_(i))
        to_leader[i].start(inboxes[i].from_(0))
    leader = Team(0, HOSTS, to_others, inboxes[0])
    return [leader, *(Team(i, HOSTS, {0: to_leader[i]}, inboxes[i]) for i in (1, 2))]


def run(teams: list[Team], *bodies: Callable[[], None]) -> list[list[str]]:
    """What each was told when it had to end. A process closes its links as soon as it is done."""
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


def test_all_hear_why_one_has_ended() -> None:
    """From the leader, if it was another."""
    teams = make_teams()
    stay = threading.Event()
    said: list[list[str]] = [[], []]

    def watcher(i: int) -> None:
        def tell(reason: str) -> None:
            said[i].append(reason)
            stay.set()

        with watched(teams[2 * i], tell):
            stay.wait(10)

    threads = [threading.Thread(target=watcher, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(CfpError), watched(teams[1], lambda reason: None):
        raise CfpError("The loss is nan.")
    assert stay.wait(5)
    for team in teams:
        team.close()
    for thread in threads:
        thread.join(10)
    assert said[0] == ["Lost process 1 on boxb: The loss is nan."]
    assert said[1] in ([], said[0])  # it may have ended with the leader


def test_one_that_is_interrupted_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 0.2)
    teams = make_teams()
    told = threading.Event()
    said: list[str] = []

    def tell(reason: str) -> None:
        said.append(reason)
        told.set()

    def other() -> None:
        with watched(teams[0], tell):
            told.wait(10)  # in a step that never ends

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    with watched(teams[1], lambda reason: None) as farewell:
        farewell.hurry("Interrupted after 3 steps.")
    assert told.wait(5)
    assert said == ["Lost process 1 on boxb: Interrupted after 3 steps."]
    for team in teams:
        team.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_is_gone_is_named(victim: int) -> None:
    teams = make_teams()
    told = threading.Event()

    said: list[str] = []

    def tell(reason: str) -> None:
        said.append(reason)
        told.set()

    watcher = teams[1 - victim]
    with watched(watcher, tell):
        teams[victim].close()
        assert told.wait(5)
    assert said[0].startswith(f"Lost process {victim} on {HOSTS[victim]}")
    for team in teams:
        team.close()
