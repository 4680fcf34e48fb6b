"""Links: messages arrive in order, an end that is gone is noticed, strangers are refused."""

from __future__ import annotations

import queue
import socket
import threading
from multiprocessing import AuthenticationError
from typing import Any

import pytest

from cfp.cluster import link as link_module
from cfp.cluster.link import Link, LinkLost


def pair(secrets: tuple[bytes, bytes] = (b"s", b"s")) -> list[Link | BaseException]:
    """Both ends of a link, or what each of them raised."""
    sockets = socket.socketpair()
    found: list[Link | BaseException] = [ValueError(), ValueError()]

    def make(i: int) -> None:
        try:
            found[i] = Link(sockets[i], secrets[i], accepts=i == 0)
        except (AuthenticationError, EOFError, OSError) as error:
            found[i] = error
            sockets[i].close()

    threads = [threading.Thread(target=make, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    return found


def linked() -> tuple[Link, Link]:
    a, b = pair()
    assert isinstance(a, Link)
    assert isinstance(b, Link)
    return a, b


def test_messages_arrive_in_order() -> None:
    a, b = linked()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    b.start(got.put)
    a.start(lambda message: None)
    for i in range(100):
        a.send("number", i)
    assert [got.get(timeout=5) for _ in range(100)] == [("number", i) for i in range(100)]
    a.close()
    b.close()


def test_an_end_that_closes_is_noticed_at_once() -> None:
    a, b = linked()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    b.start(lambda message: None)
    b.close()
    assert got.get(timeout=5) is None
    assert a.lost == "it ended"
    with pytest.raises(LinkLost):
        a.send("anyone?")


def test_silence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SILENT_S", 0.3)
    a, b = linked()  # the other end is there and says nothing: nobody started it
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    assert got.get(timeout=5) is None
    assert a.lost == "nothing was heard of it for 0.3 s"
    b.close()


def test_beats_keep_a_link_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SILENT_S", 0.5)
    monkeypatch.setattr(link_module, "BEAT_S", 0.1)
    a, b = linked()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    b.start(lambda message: None)
    with pytest.raises(queue.Empty):
        got.get(timeout=1.5)
    a.close()
    b.close()


def test_what_cannot_be_read_ends_the_link() -> None:
    a, b = linked()
    got: queue.SimpleQueue[Any] = queue.SimpleQueue()
    a.start(got.put)
    b._connection.send_bytes(b"no pickle")
    assert got.get(timeout=5) is None
    assert a.lost is not None
    assert a.lost.startswith("what it said cannot be read (UnpicklingError")
    b.close()


def test_who_does_not_know_the_secret_is_refused() -> None:
    ends = pair((b"ours", b"theirs"))
    assert isinstance(ends[0], AuthenticationError)
    assert not isinstance(ends[1], Link)
