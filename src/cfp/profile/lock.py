"""One at a time, between the processes of a machine.

Two planners that measure on the same devices at once spoil each other's numbers. The kernel keeps
the lock (`flock`), so it is free again when its holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cfp.errors import CfpError

_POLL_S = 0.05


class StillHeld(Exception):
    """Another process has the lock, and time is up."""


@contextmanager
def exclusive(
    name: str, *, waiting: Callable[[], None] | None = None, until: float = math.inf
) -> Iterator[None]:
    """Holds the lock of that name; blocks until it is free. A holder must not ask for it again.

    `waiting` is called once, if another holds it. Ctrl-C ends the wait, and so does the time
    `until` (of `time.monotonic()`), with `StillHeld`. Who lets go waits a little before asking
    again, so that others get their turn.
    """
    told = False

    def take(descriptor: int) -> None:
        nonlocal told
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None and not told:
                    told = True
                    waiting()
                if time.monotonic() >= until:
                    raise StillHeld from None
                time.sleep(_POLL_S)

    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"cfp-{os.getuid()}-{digest}.lock")
    try:
        descriptor = _take(path, take, 0o600)
    except OSError as error:
        raise CfpError(
            f"The lock {path} cannot be taken ({error.strerror}). Remove that file, or set TMPDIR "
            "to a folder of yours."
        ) from error
    with _holding(descriptor):
        yield
    time.sleep(2 * _POLL_S)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock of a file, made where it is missing."""
    with _holding(_take(path, lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_EX), 0o666)):
        yield


def _take(path: Path, take: Callable[[int], None], mode: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        try:
            take(descriptor)
            # whoever cleans the folder may have removed the file: then others lock another one
            there = os.stat(path)
            if os.path.samestat(os.fstat(descriptor), there):
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
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may hold the descriptor too
        os.close(descriptor)
