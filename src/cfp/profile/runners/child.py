"""The worker, seen from the process that started it: a wire, a log, and how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cfp.cluster.wire import Message, Wire, WireError
from cfp.errors import CfpError
from cfp.profile.runners.messages import Setup
from cfp.profile.runners.scratch import scratch_folder
from cfp.profile.runners.settings import worker_environment

START_TIMEOUT_S = 300.0  # to import JAX and open the devices; many GPUs take their time
STUCK_S = 30  # the worker always reads, and writes messages whole: more than this is a hang
LOOK_S = 1.0  # how often the worker is looked at while it is silent
# signals that a program raises itself: any other was sent by someone else
OWN_SIGNALS = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)
# the last words of a worker of several that JAX ends because another one is gone
_ANOTHERS = re.compile("another task died|distributed service detected fatal errors")
_FATAL = re.compile(r"Check failed|Error\b|^Fatal|^F\d{4} ")
_NOISE = re.compile(r"@ |\*\*\*|File \"|PC:|Current thread|Thread 0x|Extension modules|[IW]\d{4} ")


class Worker:
    """A worker process. `command` and a file descriptor start it; `flags` are added to XLA's."""

    def __init__(self, command: Sequence[str], flags: Sequence[str]) -> None:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(scratch_folder("worker"))
            self._log = folder / "log"
            ours, theirs = socket.socketpair()
            self.wire = Wire(ours, STUCK_S)
            stack.callback(self.wire.close)
            self._socket = ours
            with theirs, self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(str(folder), flags),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C shall not reach it, but killing all of it
                )
            stack.callback(self.end)
            self._stack = stack.pop_all()

    def greet(self, setup: Setup, ends: float) -> bool:
        """Sends `setup`, the first message, and waits until the worker is ready; returns whether it
        is before the time `ends`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        reason = self._greeted(setup, min(deadline, ends))
        if reason and time.monotonic() >= ends and self._process.poll() is None:
            return False
        if reason:
            raise CfpError(
                f"The process that measures programs could not start: {reason}. If another program "
                "holds the devices, end it, or measure in this process."
            )
        return True

    def _greeted(self, setup: Setup, deadline: float) -> str:
        try:
            self.send(setup, deadline)
            while time.monotonic() < deadline:
                if self.receive(deadline) is not None:
                    return ""
        except (EOFError, OSError):
            return self.obituary()
        except WireError as error:
            return str(error).rstrip(".")
        return f"no answer in {START_TIMEOUT_S:g} s"

    def send(self, message: Message, ends: float) -> None:
        """Sends a message to a worker that may have stopped reading; it is waited for until the
        budget `ends`, and for a moment after that."""
        wait_s = int(min(max(ends - time.monotonic(), LOOK_S), STUCK_S))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", wait_s, 0))
        self.wire.send(message)

    def receive(self, deadline: float) -> Message | None:
        """Returns a message, or None if none comes by the deadline or for a while; raises EOFError
        if none will come."""
        left = max(0.0, min(LOOK_S, deadline - time.monotonic()))
        gone = self._process.poll() is not None  # before looking for its last words
        message = self.wire.receive(left)
        if message is None and gone:
            raise EOFError
        return message

    def killed_from_outside(self) -> bool:
        """Returns whether a signal ended the worker that no program sends to itself, or another
        worker's end did."""
        code = self._process.poll()
        if code is None or code >= 0:
            return False
        return -code not in OWN_SIGNALS or _ANOTHERS.search(_tail(self._log)) is not None

    def obituary(self) -> str:
        """Returns in one line why there is no hearing from the worker."""
        try:
            code = self._process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            return "the worker stopped listening"
        # who aborts or exits says why; on other signals the last words are about something else
        line = _last_words(self._log) if code in (1, -signal.SIGABRT) else ""
        if line:
            return f"the worker crashed: {line}"
        if code < 0:
            names = {int(number): number.name for number in signal.Signals}
            return f"the worker was killed by signal {-code} ({names.get(-code, 'unknown')})"
        return f"the worker ended with exit code {code}"

    def kill(self) -> None:
        self._stack.close()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _environment(folder: str, flags: Sequence[str]) -> dict[str, str]:
    # what is imported there is what is imported here, however it got onto the path
    path = [*(entry or os.getcwd() for entry in sys.path), str(Path(__file__).parents[3])]
    more = {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags])} if flags else {}
    return {
        **worker_environment(os.environ),
        **more,
        "PYTHONPATH": os.pathsep.join(path),
        "TMPDIR": folder,  # so that traces go with the worker, however it ends
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the devices are not ours alone
    }


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2**16))
        return file.read().decode(errors="replace")


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in _tail(log).splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    fatal = [line for line in lines if _FATAL.search(line)]
    return (fatal or lines or [""])[-1][:300]
