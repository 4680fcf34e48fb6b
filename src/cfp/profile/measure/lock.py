"""One at a time, between the processes of a machine.

Two planners that measure on the same devices at once spoil each other's numbers. The kernel keeps
the lock (`flock`), so it is free again when its holder dies, however it dies. Who holds a lock is
written in its file, for those who wait. Those who wait share a second lock, the queue: a holder
that lets go sees there whether anybody wants a turn.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from cfp.errors import CfpError

_POLL_S = 0.05  # seconds between looks at a lock that is held for seconds or minutes
_OFTEN_S = 0.002  # seconds between looks at a lock that is held for milliseconds
_LONGEST = 200  # characters of a command that are shown: two lines of a terminal


class StillHeld(Exception):
    """Another process has the lock, and time is up; the text says who."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has a lock; `since` is seconds since 1970."""

    pid: int
    host: str
    command: str
    since: float

    @staticmethod
    def this() -> Holder:
        words = [*sys.orig_argv]
        program = Path(sys.argv[0])
        if program.name and program.name != "-c":
            name = program.parent.name if program.name == "__main__.py" else program.name
            words = [name, *sys.argv[1:]]
        return Holder(os.getpid(), socket.gethostname(), " ".join(words)[:_LONGEST], time.time())

    def show(self) -> str:
        """Returns `process 12 on boxa (cfp plan gpt --mesh 4) since 2026-11-18 02:31:07`."""
        since = f"{datetime.fromtimestamp(self.since):%Y-%m-%d %H:%M:%S}"
        return f"process {self.pid} on {self.host} ({self.command}) since {since}"


@contextmanager
def exclusive(
    name: str, *, waiting: Callable[[str], None] | None = None, until: float = math.inf
) -> Iterator[None]:
    """Holds the lock of that name; blocks until it is free. A holder must not ask for it again.

    `waiting` is called once, if another holds it, with who that is. Ctrl-C ends the wait, and so
    does the time `until` (of `time.monotonic()`), with `StillHeld`. Where others wait, the holder
    pauses after letting go, so that they get their turn before it asks again.
    """
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"cfp-{os.getuid()}-{digest}.lock")
    with ExitStack() as opened:
        try:
            queue = _open(path.with_suffix(".queue"), 0o600)
            opened.callback(os.close, queue)
            descriptor = _take(path, 0o600, _Patience(until, _POLL_S, waiting, queue))
        except OSError as error:
            raise CfpError(
                f"The lock {path} cannot be taken ({error.strerror}). Remove that file, or set "
                "TMPDIR to a folder of yours."
            ) from error
        with _holding(descriptor):
            yield
        if not _locks(queue, fcntl.LOCK_EX):
            time.sleep(2 * _POLL_S)


@contextmanager
def held(path: Path, within_s: float = math.inf) -> Iterator[None]:
    """Holds the lock of a file, made where it is missing; `StillHeld` if it is not free in time."""
    patience = _Patience(time.monotonic() + within_s, _OFTEN_S)
    with _holding(_take(path, 0o666, patience)):
        yield


@dataclass
class _Patience:
    """How long to wait, how often to look, whom to tell, and the queue to stand in meanwhile."""

    until: float
    poll_s: float
    waiting: Callable[[str], None] | None = None
    queue: int | None = None

    def lock(self, descriptor: int) -> None:
        if _locks(descriptor, fcntl.LOCK_EX):
            return
        with self._queueing():
            if self.waiting is not None:
                waiting, self.waiting = self.waiting, None
                waiting(_holder_text(descriptor))
            while not _locks(descriptor, fcntl.LOCK_EX):
                if time.monotonic() >= self.until:
                    raise StillHeld(_holder_text(descriptor))
                time.sleep(self.poll_s)

    @contextmanager
    def _queueing(self) -> Iterator[None]:
        if self.queue is None:
            yield
            return
        fcntl.flock(self.queue, fcntl.LOCK_SH)  # at most the instant in which a holder looks
        try:
            yield
        finally:
            fcntl.flock(self.queue, fcntl.LOCK_UN)


def _locks(descriptor: int, how: int) -> bool:
    """Locks the file if nobody is in the way; returns whether it did."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path, mode: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)


def _take(path: Path, mode: int, patience: _Patience) -> int:
    while True:
        descriptor = _open(path, mode)
        try:
            patience.lock(descriptor)
            # whoever cleans the folder may have removed the file: then others lock another one
            there = os.stat(path)
            if os.path.samestat(os.fstat(descriptor), there):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(asdict(Holder.this())).encode(), 0)
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def _holding(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        try:
            os.ftruncate(descriptor, 0)  # nobody has it
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may hold the descriptor too
            os.close(descriptor)


def _holder_text(descriptor: int) -> str:
    """Says who has the lock, as far as its file tells."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        holder = Holder(
            int(found["pid"]), str(found["host"]), str(found["command"]), float(found["since"])
        )
        return holder.show()
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return "a process that does not say who it is"  # it took the lock just now
