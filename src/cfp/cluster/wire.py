"""What crosses the boundary of a process, and how it is written: the only place that encodes it.

A message is a `Message`: typed fields of plain data, written as MessagePack. To read one nothing is
executed and no type is looked up by a name that came along: what does not fit the types declared
here and where messages are defined is refused, with a `WireError`.

    frame   = length of the body (4 bytes) | body
    body    = message, or, where the ends share a key, MAC (32 bytes) | message
    MAC     = HMAC-SHA256(key of the direction, number of the frame (8 bytes) | message)

So a message that was altered, repeated, left out, or sent back to where it came from has a wrong
MAC, and ends the connection. What is said is not encrypted.
"""

from __future__ import annotations

import functools
import hmac
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import msgspec

from cfp.errors import CfpError

FRAME_BYTES = 2**30  # a program with its constants is the largest: this is a hundred times usual
MAC_BYTES = hmac.new(b"", b"", "sha256").digest_size
CHUNK_BYTES = 2**20  # read at once, so that a length alone makes nobody set memory aside
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")


class WireError(CfpError):
    """What came, or was to be sent, is no message: the text says why."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """What one process says to another. A class that derives from it can be sent."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of the two directions of a connection."""

    sends: bytes
    receives: bytes


def encode(value: Any) -> bytes:
    """Returns a message, or another value of plain data, as bytes."""
    try:
        data = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"A `{type(value).__name__}` cannot be sent: {error}.") from error
    return data


def decode(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """Returns the value of that type that the bytes are; raises `WireError` if they are none."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (ValueError, RecursionError, MemoryError) as error:
        raise WireError(f"What came is no `{kind.__name__}`: {error}.") from None


def decode_message(data: bytes | bytearray | memoryview) -> Message:
    """Returns the message, of whichever class, that the bytes are."""
    try:
        found: Message = _decoder(tuple(Message.__subclasses__())).decode(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise WireError(f"What came is no message: {error}.") from None
    return found


def sign(key: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    """Returns the MAC of the parts; where each begins counts, too."""
    mac = hmac.new(key, digestmod="sha256")
    for part in parts:
        mac.update(_NUMBER.pack(len(part)))
        mac.update(part)
    return mac.digest()


def check(key: bytes, mac: bytes | bytearray | memoryview, *parts: bytes | memoryview) -> None:
    """Raises `WireError` unless it is the MAC of the parts."""
    if not hmac.compare_digest(bytes(mac), sign(key, *parts)):
        raise WireError("What came was not written by a process that knows the secret.")


class Wire:
    """Frames over a connected socket, whose owner it becomes.

    `patience_s` is the longest pause within a message, None any. By `deadline`, a time of
    `time.monotonic`, all that is awaited must have come, if there is one. Neither `send` nor
    `receive` may be called from two threads at once, but one of each may.
    """

    def __init__(self, connected: socket.socket, patience_s: float | None) -> None:
        connected.settimeout(None)
        self._socket = connected
        self._patience_s = patience_s
        self._keys: Keys | None = None
        self._sent = self._received = 0
        self.deadline: float | None = None
        self.limit_bytes = FRAME_BYTES

    def protect(self, keys: Keys) -> None:
        """Gives every message from now on a MAC."""
        self._keys = keys

    def send(self, message: Message) -> None:
        """Raises `OSError` where nobody can hear it, and `WireError` if it cannot be sent."""
        data = encode(message)
        if len(data) > self.limit_bytes:
            raise WireError(
                f"A `{type(message).__name__}` of {len(data)} bytes is too large to be sent (at "
                f"most {self.limit_bytes}): let large arrays be arguments of the step, not "
                "constants in it."
            )
        mac = b""
        if self._keys is not None:
            mac = sign(self._keys.sends, _NUMBER.pack(self._sent), data)
        self._sent += 1
        self._socket.sendall(_LENGTH.pack(len(mac) + len(data)) + mac)
        self._socket.sendall(data)

    def receive(self, timeout_s: float | None) -> Message | None:
        """Returns the next message, or None if none begins in time. Raises `EOFError` when the
        other end is gone, `OSError` when the connection is, `WireError` for what is no message."""
        if not self._readable(timeout_s):
            return None
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size))
        if length > self.limit_bytes + MAC_BYTES:
            raise WireError(
                f"What came is no message: {length} bytes, of at most {self.limit_bytes}."
            )
        body = memoryview(self.read(length))
        if self._keys is None:
            self._received += 1
            return decode_message(body)
        mac, data = body[:MAC_BYTES], body[MAC_BYTES:]
        check(self._keys.receives, mac, _NUMBER.pack(self._received), data)
        self._received += 1
        return decode_message(data)

    def write(self, data: bytes) -> None:
        """Sends bytes that are no message, before there are messages."""
        self._socket.sendall(data)

    def read(self, count: int) -> bytearray:
        """Returns exactly `count` bytes."""
        found = bytearray()
        while len(found) < count:
            if not self._readable(self._patience_s):
                raise TimeoutError("it stopped within a message")
            more = self._socket.recv(min(count - len(found), CHUNK_BYTES))
            if not more:
                raise EOFError
            found += more
        return found

    def shutdown(self) -> None:
        """Wakes whoever sends or receives, from any thread: closing would not."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end was faster

    def close(self) -> None:
        self._socket.close()

    def _readable(self, timeout_s: float | None) -> bool:
        if self.deadline is not None:
            left = max(self.deadline - time.monotonic(), 0.0)
            timeout_s = left if timeout_s is None else min(left, timeout_s)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1000 * max(timeout_s, 0.0)))


@functools.lru_cache(maxsize=4)  # classes are only added while modules are imported
def _decoder(kinds: tuple[type[Message], ...]) -> msgspec.msgpack.Decoder[Message]:
    return msgspec.msgpack.Decoder(Union[kinds])  # noqa: UP007 - of as many as there are
