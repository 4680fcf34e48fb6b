"""Ends what a launcher started when the launcher is gone, however it ended: by kill -9, too.

The launcher holds the one end of a pipe and never writes to it; all that it starts, and what those
start in turn, inherit the other. Reading there ends when the launcher does: that is how commands of
ours notice, however many shells are in between (`follow`). Other commands cannot know; on Linux the
kernel ends those that the launcher itself started (`forking`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator

VARIABLE = "CFP_LAUNCHER"  # the inherited end: its number, and which pipe that is
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def leash() -> Iterator[tuple[int, str]]:
    """Gives what the launcher passes on to the processes it starts, while it is there: the end of
    the pipe, and the value of the variable that says so."""
    theirs, ours = os.pipe()
    try:
        yield theirs, f"{theirs}:{os.fstat(theirs).st_ino}"
    finally:
        os.close(theirs)
        os.close(ours)


def follow() -> None:
    """Makes this process end when its launcher does, if it has one."""
    found = _inherited()
    if found is not None:
        threading.Thread(target=_watch, args=(found,), daemon=True).start()


def _inherited() -> int | None:
    """Returns the end of the pipe; None if there is none, or if someone in between closed it: its
    number may be another file's by now."""
    number, _, which = os.environ.get(VARIABLE, "").partition(":")
    try:
        status = os.fstat(int(number))
    except (ValueError, OSError):
        return None
    return int(number) if stat.S_ISFIFO(status.st_mode) and str(status.st_ino) == which else None


def _watch(end: int) -> None:
    with contextlib.suppress(OSError):
        os.read(end, 1)
    with contextlib.suppress(OSError, ValueError):  # the launcher may have read what we write
        sys.stderr.write("cfp: The launcher is gone.\n")
    os._exit(1)  # the main thread may hang: do not ask it


@contextlib.contextmanager
def forking() -> Iterator[Callable[[], None]]:
    """Puts off the signals that end a launcher while it starts a process: an exception that their
    handlers raised during the fork would be lost in Python's hooks. Blocking them would not do,
    because another thread takes what this one blocks, and the handler runs here all the same.
    Gives the call that the new process makes first: on Linux it is killed when its parent ends.
    It must be called in the main thread, where Python runs handlers."""
    came: list[int] = []
    before = {one: signal.signal(one, lambda number, frame: came.append(number)) for one in _ENDING}
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None
    parent = os.getpid()

    def first() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it was faster
                os._exit(1)

    try:
        yield first
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in came:
            signal.raise_signal(number)
