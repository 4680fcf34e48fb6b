"""The worker, seen from the process that started it: a connection, a log, and how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from cfp.errors import CfpError

START_TIMEOUT_S = 300.0  # to import JAX and open the devices; many GPUs take their time
STUCK_S = 30  # the worker always reads, and writes messages whole: more than this is a hang
LOOK_S = 1.0  # how often the worker is looked at while it is silent
_ALONE = "--xla_gpu_shard_autotuning=false"
_FATAL = re.compile(r"Check failed|Error\b|^Fatal|^F\d{4} ")
_NOISE = re.compile(r"@ |\*\*\*|File \"|PC:|Current thread|Thread 0x|Extension modules|[IW]\d{4} ")


class Worker:
    """`command` and a file descriptor start it. Workers that compile `together` with those of other
    processes do not wait for each other."""

    def __init__(self, command: Sequence[str], together: bool) -> None:
        with contextlib.ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="cfp-worker-", ignore_cleanup_errors=True)
            stack.enter_context(folder)
            self._log = Path(folder.name) / "log"
            ours, theirs = socket.socketpair()
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STUCK_S, 0))
            self.connection: Connection[Any, Any] = Connection(ours.detach())
            stack.enter_context(self.connection)
            with theirs, self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(folder.name, together),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C shall not reach it, but killing all of it
                )
            stack.callback(self.end)
            self._stack = stack.pop_all()

    def greet(self, setup: tuple[object, ...]) -> None:
        """`setup` is its first message; returns when the worker is ready."""
        reason = self._greeted(setup)
        if reason:
            raise CfpError(
                f"The process that measures programs could not start: {reason}. If another program "
                "holds the devices, end it, or measure in this process."
            )

    def _greeted(self, setup: tuple[object, ...]) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            self.connection.send(setup)
            while time.monotonic() < deadline:
                if self.receive(deadline) is not None:
                    return ""
        except (EOFError, OSError):
            return self.obituary()
        return f"no answer in {START_TIMEOUT_S:g} s"

    def receive(self, deadline: float) -> tuple[Any, ...] | None:
        """A message, or nothing by the deadline or for a while; EOFError if none will come."""
        left = max(0.0, min(LOOK_S, deadline - time.monotonic()))
        gone = self._process.poll() is not None  # before looking for its last words
        if self.connection.poll(left):
            return cast(tuple[Any, ...], self.connection.recv())
        if gone:
            raise EOFError
        return None

    def obituary(self) -> str:
        """Why there is no hearing from the worker, in one line."""
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


def _environment(folder: str, together: bool) -> dict[str, str]:
    # what is imported there is what is imported here, however it got onto the path
    path = [*(entry or os.getcwd() for entry in sys.path), str(Path(__file__).parents[2])]
    # processes that tune kernels together wait for each other, but they compile in any order
    alone = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_ALONE}"} if together else {}
    return {
        **os.environ,
        **alone,
        "PYTHONPATH": os.pathsep.join(path),
        "TMPDIR": folder,  # so that traces go with the worker, however it ends
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the devices are not ours alone
    }


def _last_words(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2**16))
        text = file.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    fatal = [line for line in lines if _FATAL.search(line)]
    return (fatal or lines or [""])[-1][:300]
