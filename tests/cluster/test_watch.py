"""Processes that end together do; one that is gone before is named."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cfp.cluster.link import Inbox
from cfp.cluster.team import Team
from cfp.cluster.watch import watched
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
