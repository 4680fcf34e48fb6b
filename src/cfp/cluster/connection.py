"""A connection between two processes that notices when the other end is gone.

A process that dies closes its connection, which is noticed at once. A host that disappears closes
nothing: so each end sends a beat every `BEAT_S`, and one that is silent for `SILENT_S` is gone.

Both ends know a secret, and prove it: each sends a random number, the keys of the two directions
are made of the secret and both numbers, and the first message each way is a greeting under them
(`cfp.cluster.wire`). So is every later message.
"""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable

from cfp.cluster.wire import FRAME_BYTES, Keys, Message, Wire, WireError, sign

BEAT_S = 2.0  # between beats: ten may be late or lost before an end counts as gone
SILENT_S = 20.0  # longer than a busy machine keeps a thread from running
PROOF_S = 10.0  # to prove that one knows the secret: a few small messages
GREETING_BYTES = 4096  # at most, of what an end says that has proved nothing yet
_NONCE_BYTES = 32  # so many random bytes never come twice


class ConnectionLost(Exception):
    """The other end is gone; the text says how that was noticed."""


class Beat(Message, frozen=True):
    """Says that its sender is there."""


class Connection:
    """A connection to another process, with a thread that hears it. Owns `connected`, unless making
    it raises `WireError`, `EOFError` or `OSError`, where the other end does not prove within
    `PROOF_S` that it knows the secret. The end that `accepts` answers the other's `greeting` with
    its own; `greeted` is the other's."""

    def __init__(
        self, connected: socket.socket, secret: bytes, greeting: Message, *, accepts: bool
    ) -> None:
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a host may go in the midst of a message
                patience_ms = int(1000 * SILENT_S)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        self._wire = Wire(connected, SILENT_S)
        self.greeted = _greet(self._wire, secret, greeting, accepts=accepts)
        self.lost: str | None = None
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._started = False

    def start(self, given: Callable[[Message | None], None]) -> None:
        """Calls `given` with every message from now on, from a thread of its own, and once with
        None when the other end is gone or the connection is closed; then `lost` says why."""
        self._started = True
        threading.Thread(target=self._read, args=(given,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, message: Message) -> None:
        """Raises `ConnectionLost` where nobody can hear it."""
        try:
            with self._sending:
                self._wire.send(message)
        except OSError as error:
            raise ConnectionLost(self.lost or _said(error)) from None

    def wait(self) -> None:
        """Returns when the other end is gone, or the connection closed."""
        self._closed.wait()

    def close(self) -> None:
        """Ends the connection; the other end notices."""
        if not self._closed.is_set():
            self._closed.set()
            self.lost = self.lost or "the connection was closed"
            self._wire.shutdown()
            if not self._started:  # else the reader does it
                self._release()

    def _release(self) -> None:
        with self._sending:
            self._wire.close()

    def _read(self, given: Callable[[Message | None], None]) -> None:
        try:
            while True:
                message = self._wire.receive(SILENT_S)
                if message is None:
                    self.lost = self.lost or f"nothing was heard of it for {SILENT_S:g} s"
                    break
                if not isinstance(message, Beat):
                    given(message)
        except (EOFError, OSError) as error:
            self.lost = self.lost or _said(error)
        except WireError as error:
            self.lost = self.lost or f"what it said cannot be read ({str(error).rstrip('.')})"
        self._closed.set()
        self._wire.shutdown()
        self._release()
        given(None)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            try:
                self.send(Beat())
            except ConnectionLost:
                return  # the reader notices, and says so


class Inbox:
    """Messages from several ends, each with who sent it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()

    def from_(self, who: int) -> Callable[[Message | None], None]:
        return lambda message: self._queue.put((who, message))

    def get(self, timeout_s: float | None) -> tuple[int, Message | None] | None:
        """Returns the next message with its sender, None in place of a message if that sender is
        gone, and None if nothing comes in time."""
        try:
            return self._queue.get(timeout=None if timeout_s is None else max(timeout_s, 0.0))
        except queue.Empty:
            return None


def _greet(wire: Wire, secret: bytes, greeting: Message, *, accepts: bool) -> Message:
    """Returns the other end's greeting, proved."""
    wire.deadline, wire.limit_bytes = time.monotonic() + PROOF_S, GREETING_BYTES
    ours = secrets.token_bytes(_NONCE_BYTES)
    wire.write(ours)
    theirs = bytes(wire.read(_NONCE_BYTES))
    numbers = (ours, theirs) if accepts else (theirs, ours)
    answers, asks = (sign(secret, role, *numbers) for role in (b"accepts", b"connects"))
    wire.protect(Keys(answers, asks) if accepts else Keys(asks, answers))
    if not accepts:
        wire.send(greeting)
    greeted = wire.receive(PROOF_S)
    if greeted is None:
        raise TimeoutError(f"no greeting in {PROOF_S:g} s")
    if accepts:  # strangers learn nothing
        wire.send(greeting)
    wire.deadline, wire.limit_bytes = None, FRAME_BYTES
    return greeted


def _said(error: EOFError | OSError) -> str:
    if isinstance(error, (EOFError, BrokenPipeError, ConnectionResetError)):
        return "it ended"
    return f"its connection broke ({error.strerror or error})"
