"""Connections: messages arrive in order, an end that is gone is noticed, strangers are refused."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from typing import Any

import pytest

from cfp.cluster import connection as connection_module
from cfp.cluster.connection import Connection, ConnectionLost
from cfp.cluster.wire import Message, WireError


class Number(Message, frozen=True):
    value: int


def pair(secrets: tuple[bytes, bytes] = (b"s", b"s")) -> list[Connection | BaseException]:
    """Both ends of a connection, or what each of them raised."""
    sockets = socket.socketpair()
    found: list[Connection | BaseException] = [ValueError(), ValueError()]

    def make(i: int) -> None:
        try:
            found[i] = Connection(sockets[i], secrets[i], Number(i), accepts=i == 0)
        except (WireError, EOFError, OSError) as error:
            found[i] = error
            sockets[i].close()

    threads = [threading.Thread(target=make, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    return found


def connect_pair() -> tuple[Connection, Connection]:
    a, b = pair()
    assert isinstance(a, Connection)
    assert isinstance(b, Connection)
    return a, b


def test_messages_arrive_in_order() -> None:
    a, b = connect_pair()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    b.start(got.put)
    a.start(lambda message: None)
    for i in range(100):
        a.send(Number(i))
    assert [got.get(timeout=5) for _ in range(100)] == [Number(i) for i in range(100)]
    a.close()
    b.close()


def test_an_end_that_closes_is_noticed_at_once() -> None:
    a, b = connect_pair()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    b.start(lambda message: None)
    b.close()
    assert got.get(timeout=5) is None
    assert a.lost == "it ended"
    with pytest.raises(ConnectionLost):
        a.send(Number(1))


def test_silence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENT_S", 0.3)
    a, b = connect_pair()  # the other end is there and says nothing: nobody started it
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    assert got.get(timeout=5) is None
    assert a.lost == "nothing was heard of it for 0.3 s"
    b.close()


def test_beats_keep_a_connection_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENT_S", 0.5)
    monkeypatch.setattr(connection_module, "BEAT_S", 0.1)
    a, b = connect_pair()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    b.start(lambda message: None)
    with pytest.raises(queue.Empty):
        got.get(timeout=1.5)
    a.close()
    b.close()


def test_each_has_the_others_greeting() -> None:
    a, b = connect_pair()
    assert (a.greeted, b.greeted) == (Number(1), Number(0))
    a.close()
    b.close()


def test_what_cannot_be_read_ends_the_connection() -> None:
    a, b = connect_pair()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    b._wire.write(struct.pack(">I", 40) + 40 * b"!")  # as one who has the connection, not the key
    assert got.get(timeout=5) is None
    assert a.lost == (
        "what it said cannot be read (What came was not written by a process that knows the secret)"
    )
    b.close()


@pytest.mark.parametrize("secrets", [(b"ours", b"theirs"), (b"ours", b"")])
def test_who_does_not_know_the_secret_is_refused(secrets: tuple[bytes, bytes]) -> None:
    ends = pair(secrets)
    assert isinstance(ends[0], WireError)
    assert isinstance(ends[1], EOFError)  # it is told nothing


@pytest.mark.parametrize("accepts", [True, False])
def test_who_only_sends_back_what_it_hears_is_refused(
    accepts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "PROOF_S", 0.3)
    ours, theirs = socket.socketpair()

    def echo() -> None:
        while data := theirs.recv(2**16):
            theirs.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    with ours, pytest.raises(TimeoutError if accepts else WireError):
        Connection(ours, b"s", Number(0), accepts=accepts)
    thread.join(5)
    theirs.close()


def test_a_greeting_may_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte every now and then."""
    monkeypatch.setattr(connection_module, "PROOF_S", 0.5)
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.05):
            theirs.sendall(b"!")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        Connection(ours, b"s", Number(0), accepts=True)
    assert time.monotonic() - start < 5
    over.set()
    thread.join()
    with ours, theirs:
        pass
