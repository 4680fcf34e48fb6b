"""Messages on a wire: what is sent arrives; whatever else comes is refused in one way."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cfp.cluster import wire as wire_module
from cfp.cluster.wire import Keys, Message, Wire, WireError, check, decode, decode_message, encode
from cfp.profile.runners.job import Compiled, Failed, Job, Memory, Shares
from cfp.profile.runners.messages import Answer, Ask, Drop, Finished, Run, Setup, Submit, TimeShares
from cfp.segments.fill import Fill

KEYS = Keys(b"a" * 32, b"b" * 32)
text = st.text(st.characters(exclude_categories=["Cs"]))
whole = st.integers(0, 2**63 - 1)
seconds = st.floats(allow_nan=False)
shares = st.builds(Shares, seconds, seconds, seconds)
failed = st.builds(Failed, text, text)
compiled = st.builds(Compiled, text, seconds, st.builds(Memory, whole, whole, whole, whole))
fills = st.builds(Fill, st.lists(whole).map(tuple), text, st.sampled_from(["normal", "bits"]))
jobs = st.builds(
    Job,
    text,
    text,
    st.binary(),
    st.lists(fills).map(tuple),
    st.dictionaries(whole, whole),
    st.booleans(),
)
values = st.one_of(seconds, failed, st.dictionaries(text, shares))
messages: st.SearchStrategy[Message] = st.one_of(
    failed,
    compiled,
    st.builds(Submit, jobs),
    st.builds(Answer, values),
    st.builds(Drop, st.lists(text).map(tuple)),
    st.builds(Finished, whole, st.one_of(failed, compiled)),
    st.builds(Ask, whole, st.builds(TimeShares, st.lists(text).map(tuple)), seconds),
)


@contextlib.contextmanager
def wired(keys: Keys | None = KEYS) -> Iterator[tuple[Wire, Wire]]:
    ends = tuple(Wire(end, 5.0) for end in socket.socketpair())
    if keys is not None:
        ends[0].protect(keys)
        ends[1].protect(Keys(keys.receives, keys.sends))
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


def frames(*sent: Message) -> list[bytes]:
    """What goes over the socket, message by message."""
    ours, theirs = socket.socketpair()
    wire = Wire(ours, 5.0)
    wire.protect(KEYS)
    found = []
    with ours, theirs:
        for message in sent:
            wire.send(message)
            found.append(theirs.recv(2**20))
    return found


@given(messages)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode_message(encode(message)) == message


@given(st.binary())
@example(b"\xdd\xff\xff\xff\xff")  # a list of four thousand million entries
@example(encode(["Setup", {}, {"x": 1}, 1, None])[:-1] + b"\x91" * 10**5)  # lists in lists
@example(pickle.dumps(print))
@example(encode(["Run", "\ud7ff"]).replace("\ud7ff".encode(), b"\xff\xff\xff"))  # no text
def test_other_bytes_are_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(decode_message(data), Message)


@pytest.mark.parametrize(
    "data",
    [
        ["Unheard", 1],
        ["Run"],
        ["Run", 1],
        ["Run", None],
        ["Run", "a", "b"],
        ["Drop", ["a", 1]],
        ["Failed", "a", b"b"],
        ["Answer", [1.0]],
        ["Submit", {"key": "a", "name": "b", "module": "text", "inputs": []}],
        ["Message"],
        [],
        {},
        None,
        "Run",
    ],
)
def test_wrong_types_are_refused(data: object) -> None:
    with pytest.raises(WireError, match=r"^What came is no message: "):
        decode_message(encode(data))
    with pytest.raises(WireError, match=r"^What came is no `int`: "):
        decode(encode(data), int)


@pytest.mark.parametrize("value", [object(), print, 2**70, "\ud800", {"x": Path("x")}])
def test_what_is_not_plain_data_is_not_sent(value: Any) -> None:
    with pytest.raises(WireError, match="cannot be sent: "):
        encode(Setup(None, {"a": value}, 1, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [KEYS, None])
def test_messages_arrive(keys: Keys | None) -> None:
    big = Submit(Job("a", "b", b"x" * 10**5, ()))
    with wired(keys) as (a, b):
        for message in (Run("a"), big, Run("b")):
            a.send(message)
            b.send(message)
        for end in (a, b):
            assert [end.receive(5) for _ in range(3)] == [Run("a"), big, Run("b")]
            assert end.receive(0.01) is None
        a.close()
        with pytest.raises(EOFError):
            b.receive(5)


def altered(frame: bytes) -> list[bytes]:
    return [frame[:-1] + bytes([frame[-1] ^ 1])]


def unsigned(frame: bytes) -> list[bytes]:
    data = frame[4 + wire_module.MAC_BYTES :]
    return [struct.pack(">I", len(data)) + data]


def too_long(frame: bytes) -> list[bytes]:
    return [struct.pack(">I", 2**32 - 1) + frame[4:]]


def empty(frame: bytes) -> list[bytes]:
    return [struct.pack(">I", 0)]


@pytest.mark.parametrize("change", [altered, unsigned, too_long, empty])
def test_what_was_changed_is_refused(change: Callable[[bytes], list[bytes]]) -> None:
    with wired() as (a, b):
        for data in change(frames(Run("a"))[0]):
            a.write(data)
        with pytest.raises(WireError):
            b.receive(5)


@pytest.mark.parametrize(
    ("order", "heard"), [((0, 0), 1), ((1, 0), 0), ((0, 2), 1), ((0, 1, 1), 2), ((0, 1, 2), 3)]
)
def test_what_is_repeated_left_out_or_reordered_is_refused(
    order: tuple[int, ...], heard: int
) -> None:
    sent = [Run("a"), Run("b"), Run("c")]
    written = frames(*sent)
    with wired() as (a, b):
        for i in order:
            a.write(written[i])
        assert [b.receive(5) for _ in range(heard)] == sent[:heard]
        if heard < len(order):
            with pytest.raises(WireError, match="knows the secret"):
                b.receive(5)


def test_what_is_sent_back_is_refused() -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(ours, 5.0)
    wire.protect(KEYS)
    with ours, theirs:
        wire.send(Run("a"))
        theirs.sendall(theirs.recv(2**16))
        with pytest.raises(WireError, match="knows the secret"):
            wire.receive(5)


def test_a_message_that_stops_halfway() -> None:
    with wired() as (a, b):
        b._patience_s = 0.2
        a.write(frames(Run("a"))[0][:-1])
        with pytest.raises(TimeoutError, match="stopped within a message"):
            b.receive(5)


def test_what_is_too_large_is_not_sent() -> None:
    with wired() as (a, b):
        a.limit_bytes = 100
        with pytest.raises(WireError, match=r"A `Run` of 2\d\d bytes is too large .* constants"):
            a.send(Run("x" * 200))
        a.send(Run("y"))  # the wire is as good as before
        assert b.receive(5) == Run("y")


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_only_the_macs_own_parts_fit(first: bytes, second: bytes) -> None:
    mac = wire_module.sign(b"k", first, second)
    check(b"k", mac, first, second)
    for key, parts in ((b"l", (first, second)), (b"k", (first + second,)), (b"k", (first,))):
        with pytest.raises(WireError):
            check(key, mac, *parts)
