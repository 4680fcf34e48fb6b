"""A connection between two processes that notices when the other end is gone.

A process that dies closes its connection, which is noticed at once. A host that disappears closes
nothing: so each end sends a beat every `BEAT_S`, and one that is silent for `SILENT_S` is gone.
Messages are pickled, between ends that have proved to know the same secret.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import connection as wire
from typing import Any

BEAT_S = 2.0
SILENT_S = 20.0
PROOF_S = 10  # to prove that one knows the secret
_BEAT = ("beat",)


class LinkLost(Exception):
    """The other end is gone; the text says how that was noticed."""


class Link:
    """`given` is called with every message, from a thread of its own, and once with None when the
    other end is gone or the link is closed; then `lost` says why."""

    def __init__(self, connected: socket.socket, secret: bytes, *, accepts: bool) -> None:
        connected.settimeout(None)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a host may go in the midst of a message
                patience_ms = int(1000 * SILENT_S)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        self._socket = connected
        self._connection: wire.Connection[Any, Any] = wire.Connection(os.dup(connected.fileno()))
        prove: list[Any] = [wire.deliver_challenge, wire.answer_challenge]
        self._patience(PROOF_S)
        try:
            for each in prove if accepts else reversed(prove):
                each(self._connection, secret)
        except BaseException:
            self._connection.close()  # the socket stays the caller's
            raise
        self._patience(0)
        self.lost: str | None = None
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._started = False

    def start(self, given: Callable[[tuple[Any, ...] | None], None]) -> None:
        self._started = True
        threading.Thread(target=self._read, args=(given,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, *message: Any) -> None:
        """Raises `LinkLost` where nobody can hear it."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            raise LinkLost(self.lost or _said(error)) from None

    def wait(self) -> None:
        """Until the other end is gone, or the link closed."""
        self._closed.wait()

    def close(self) -> None:
        """The other end notices."""
        if not self._closed.is_set():
            self._closed.set()
            self.lost = self.lost or "the link was closed"
            self._hang_up()
            if not self._started:  # else the reader does it
                self._release()

    def _release(self) -> None:
        with self._sending:
            self._connection.close()
            self._socket.close()

    def _hang_up(self) -> None:
        """Wakes whoever reads or writes: closing would not."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def _patience(self, seconds: int) -> None:
        """How long a read may take; 0 is for ever."""
        limit = struct.pack("ll", seconds, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def _read(self, given: Callable[[tuple[Any, ...] | None], None]) -> None:
        try:
            while True:
                if not self._connection.poll(SILENT_S):
                    self.lost = self.lost or f"nothing was heard of it for {SILENT_S:g} s"
                    break
                message = self._connection.recv()
                if message != _BEAT:
                    given(message)
        except (EOFError, OSError) as error:
            self.lost = self.lost or _said(error)
        except Exception as error:  # noqa: BLE001 - a link without its reader would be deaf
            self.lost = f"what it said cannot be read ({type(error).__name__}: {error})"
        self._closed.set()
        self._hang_up()
        self._release()
        given(None)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            try:
                self.send(*_BEAT)
            except LinkLost:
                return  # the reader notices, and says so


class Inbox:
    """Messages from several ends, each with who sent it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, tuple[Any, ...] | None]] = queue.SimpleQueue()

    def from_(self, who: int) -> Callable[[tuple[Any, ...] | None], None]:
        return lambda message: self._queue.put((who, message))

    def get(self, timeout_s: float | None) -> tuple[int, tuple[Any, ...] | None] | None:
        """The next message, None in place of one meaning that its sender is gone; None if nothing
        comes in time."""
        try:
            return self._queue.get(timeout=None if timeout_s is None else max(timeout_s, 0.0))
        except queue.Empty:
            return None


def _said(error: EOFError | OSError) -> str:
    if isinstance(error, (EOFError, BrokenPipeError, ConnectionResetError)):
        return "it ended"
    return f"its connection broke ({error.strerror or error})"
