"""Processes that meet have the same cfp and know the secret; who can share a device can."""

from __future__ import annotations

import contextlib
import pickle
import queue
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cfp.cluster import rendezvous
from cfp.cluster.connection import PROOF_S, Connection
from cfp.cluster.join import shareable
from cfp.cluster.wire import encode
from cfp.errors import CfpError
from cfp.version import VERSION


def lead(monkeypatch: pytest.MonkeyPatch, count: int, come: Callable[[Any], None]) -> Any:
    """The leader's team, as it listens for processes on this host; `come` is given what it tells
    them."""
    threads: list[threading.Thread] = []

    def broadcast(told: Any) -> Any:
        threads.append(threading.Thread(target=come, args=(told,), daemon=True))
        threads[0].start()
        return told

    monkeypatch.setattr(rendezvous, "_broadcast", broadcast)
    monkeypatch.setattr(rendezvous, "coordinator_address", lambda: "127.0.0.1:1")
    try:
        return rendezvous._lead(count)
    finally:
        threads[0].join(10)


def greet(told: Any, process: int, version: str = VERSION) -> Connection:
    connected = socket.create_connection((told.hosts[0], told.port))
    hello = rendezvous.Hello(process, "boxb", version)
    return Connection(connected, told.secret.encode(), hello, accepts=False)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CfpError, match=r"Process 1 on boxb has cfp 0.0.1, .* install the same"):
        lead(monkeypatch, 2, lambda told: greet(told, 1, "0.0.1").close())


GREETINGS = [
    b"",
    b"[]",
    b"null",
    b'{"process": null}'.ljust(512),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00" * 4096,
    b"\xff" * 4096,
    pickle.dumps(print) * 10,
    b"\x00" * 32 + b"\x00\x00\x10\x00" + b"\xdd\xff\xff\xff\xff" * 100,
]


def test_strangers_are_sent_away_while_ours_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they say, and if they say nothing, or hardly anything, or are many."""
    monkeypatch.setattr(rendezvous, "HEARD", 32)
    strangers: list[socket.socket] = []
    ours: list[Connection] = []

    def come(told: Any) -> None:
        for greeting in GREETINGS * 4 + [b"!"] * 20:
            strangers.append(socket.create_connection((told.hosts[0], told.port)))
            with contextlib.suppress(ConnectionError, BrokenPipeError):  # sent away already
                strangers[-1].sendall(greeting)
        ours.append(greet(told, 2))
        ours.append(greet(told, 1))

    start = time.monotonic()
    team = lead(monkeypatch, 3, come)
    assert time.monotonic() - start < PROOF_S  # nobody was waited for
    assert team.hosts[1:] == ("boxb", "boxb")
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for connection in ours:
        connection.start(got.put)
        assert got.get(timeout=5) == rendezvous.Hosts(team.hosts)
    for stranger in strangers:
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionError), stranger:
            assert len(stranger.recv(2**16)) in (0, 32)  # a random number, or not even that
            assert stranger.recv(2**16) == b""
    team.close()
    for connection in ours:
        connection.close()
    for thread in threading.enumerate():
        if thread.name == "cfp-hear":
            thread.join(5)
            assert not thread.is_alive()


def test_who_knows_the_secret_and_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that there is not, or one that came before: it is the process itself, again."""
    connections: list[Connection] = []

    def come(told: Any) -> None:
        connections.extend(greet(told, process) for process in (0, -1, 3, 2**40, 1, 1, 2))

    team = lead(monkeypatch, 3, come)
    assert sorted(team.connections) == [1, 2]
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for connection in connections:
        connection.start(got.put)
    heard = [got.get(timeout=5) for _ in connections]
    assert heard.count(None) == 5
    assert heard.count(rendezvous.Hosts(team.hosts)) == 2
    for one in (team, *connections):
        one.close()


def test_nobody_comes_but_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MEET_S", 1.0)

    def come(told: Any) -> None:
        with socket.create_connection((told.hosts[0], told.port)) as stranger:
            stranger.sendall(b"\xff" * 4096)
            with contextlib.suppress(ConnectionError):
                stranger.recv(2**16)
                stranger.recv(2**16)

    said = (
        r"Of 3 processes, processes 1, 2 did not connect .* within 1 s \(1 that did were strangers"
    )
    with pytest.raises(CfpError, match=said):
        lead(monkeypatch, 3, come)


def test_a_secret_that_can_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rendezvous.SECRET, "hunter2")
    with pytest.raises(CfpError, match="CFP_SECRET has 7 characters"):
        rendezvous._lead(2)


@pytest.mark.parametrize(
    ("ours", "leaders", "said"),
    [
        ("", "", "set in process 0 and not in process 1"),
        (32 * "a", 64 * "b", "set in this process and not in process 0"),
    ],
)
def test_a_secret_that_not_all_have(
    monkeypatch: pytest.MonkeyPatch, ours: str, leaders: str, said: str
) -> None:
    monkeypatch.setenv(rendezvous.SECRET, ours)
    monkeypatch.setattr(
        rendezvous, "_broadcast", lambda told: rendezvous.Invitation(("127.0.0.1",), 1, leaders)
    )
    with pytest.raises(CfpError, match=said):
        rendezvous._follow(1, 2)


def test_another_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gives up in time, and says what may be the matter."""
    monkeypatch.setattr(rendezvous, "MEET_S", 1.0)
    said: list[str] = []

    def come(told: Any) -> None:
        with pytest.raises(CfpError) as refused:
            rendezvous._reach(told, 1, b"another")
        said.append(str(refused.value))

    with pytest.raises(CfpError, match="give all processes the same CFP_SECRET"):
        lead(monkeypatch, 2, come)
    assert said[0].startswith("Process 1 cannot reach process 0 (127.0.0.1: ")
    assert "the same CFP_SECRET" in said[0]


def test_the_secret_of_the_environment_is_not_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 64 * "5"
    monkeypatch.setenv(rendezvous.SECRET, secret)
    connections: list[Connection] = []

    def come(told: Any) -> None:
        assert secret.encode() not in encode(told)
        connections.append(rendezvous._reach(told, 1, secret.encode())[0])

    team = lead(monkeypatch, 2, come)
    assert team.listens == team.leader_address == "127.0.0.1"
    for one in (team, *connections):
        one.close()


@pytest.mark.parametrize(
    ("platform", "stats", "expected"),
    [
        ("cpu", None, True),
        ("tpu", None, False),
        ("gpu", None, True),
        ("gpu", {"pool_bytes": 10, "bytes_limit": 100}, True),
        ("gpu", {"pool_bytes": 75, "bytes_limit": 100}, False),  # taken in advance
    ],
)
def test_who_can_share(platform: str, stats: dict[str, int] | None, expected: bool) -> None:
    device = SimpleNamespace(platform=platform, memory_stats=lambda: stats)
    assert shareable(device) is expected
