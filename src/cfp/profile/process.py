"""A runner in a process of its own, which may crash or hang.

XLA ends the process on a failed check and collectives can wait for ever, so programs never tried
before run in a worker (`cfp.profile.worker`). It is started when first needed. When it dies, or
does not answer in time, all of it is killed, the caller gets `RunnerLost`, and the next call
starts a new one, empty. One thread talks to one worker: requests go out, and while one answer is
awaited whatever else arrives (what has been compiled) is kept.
"""

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
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import jax
from jax.sharding import Mesh

from cfp.errors import CfpError
from cfp.profile.job import Compiled, Failed, Job, MeshSpec, Shares
from cfp.profile.runner import RunnerLost
from cfp.profile.session import default_threads

START_TIMEOUT_S = 300.0  # to import JAX and open the devices; many GPUs take their time
STUCK_S = 30  # the worker always reads, and writes messages whole: more than this is a hang
LOOK_S = 1.0  # how often the worker is looked at while it is silent
# the settings of JAX that change what is compiled, how, or for what: the worker's are ours
_SETTINGS = re.compile(
    r"jax_(enable_x64|default_matmul_precision|default_prng_impl|threefry_partitionable"
    r"|use_shardy_partitioner|allow_f16_reductions|compiler_enable_remat_pass"
    r"|\w*optimization\w*|memory_fitting_\w+|\w*compilation_cache\w*|persistent_cache_\w+"
    r"|platforms|\w+_visible_devices)"
)
_FATAL = re.compile(r"Check failed|Error\b|^Fatal|^F\d{4} ")
_NOISE = re.compile(r"@ |\*\*\*|File \"|PC:|Current thread|Thread 0x|Extension modules|[IW]\d{4} ")


class ProcessRunner:
    """Implements `cfp.profile.runner.Runner` with a worker process.

    `command` starts the worker, to which a file descriptor is added. A worker that cannot even
    start is a `CfpError`: there is no use in trying again.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        compile_threads: int | None = None,
        command: Sequence[str] | None = None,
        compile_timeout_s: float = 600.0,
    ) -> None:
        self._spec = mesh_spec(mesh)
        self._threads = compile_threads or default_threads(mesh)
        # -P: the directory we happen to be in is not a place to import from
        self._command = command or [sys.executable, "-P", "-m", "cfp.profile.worker"]
        self._compile_timeout_s = compile_timeout_s
        self._worker: _Worker | None = None
        self._under_way: dict[str, bool] = {}  # being compiled -> its turn has come
        self._progress = 0.0  # when a compilation last began or ended
        self._finished: list[Compiled | Failed] = []
        self._interrupted = False

    def submit(self, job: Job) -> None:
        self._send("submit", job)
        if not self._under_way:
            self._progress = time.monotonic()
        self._under_way[job.key] = False

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        """Returns at once with what there is, or when nothing is under way."""
        self._check()
        deadline = time.monotonic() + timeout_s
        while self._under_way:
            patience = self._progress + self._compile_timeout_s
            message = self._receive(0.0 if self._finished else min(deadline, patience), ())
            if message is not None:
                continue
            if self._finished or time.monotonic() >= deadline:
                break
            if time.monotonic() >= patience:
                raise self._lost(f"no answer in {self._compile_timeout_s:g} s", self._compiling())
        found, self._finished = self._finished, []
        return found

    def run(self, key: str, timeout_s: float) -> float | Failed:
        return cast(float | Failed, self._ask("run", key, [key], timeout_s))

    def trace(self, keys: Sequence[str], timeout_s: float) -> Mapping[str, Shares]:
        return cast(dict[str, Shares], self._ask("trace", [*keys], keys, timeout_s))

    def drop(self, keys: Sequence[str]) -> None:
        if self._worker is None:
            return
        for key in keys:
            self._under_way.pop(key, None)
        self._finished = [answer for answer in self._finished if answer.key not in keys]
        self._send("drop", [*keys])

    def close(self) -> None:
        """Kills the worker, whatever it is doing."""
        worker, self._worker = self._worker, None
        self._under_way.clear()
        self._finished.clear()
        if worker is not None:
            worker.kill()

    def __enter__(self) -> ProcessRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, kind: str, argument: object, keys: Sequence[str], timeout_s: float) -> object:
        self._send(kind, argument)
        deadline = time.monotonic() + timeout_s
        while True:
            match self._receive(deadline, keys):
                case ("answer", answer):
                    return answer
                case None if time.monotonic() >= deadline:
                    raise self._lost(f"no answer in {timeout_s:g} s", keys)

    def _send(self, kind: str, argument: object) -> None:
        self._check()
        if self._worker is None:
            self._worker = _Worker(self._command, (self._spec, _settings(), self._threads))
        try:
            self._worker.connection.send((kind, argument))
        except OSError:
            raise self._lost(self._worker.obituary(), self._compiling()) from None
        except BaseException:
            self._interrupt()
            raise

    def _receive(self, deadline: float, keys: Sequence[str]) -> tuple[Any, ...] | None:
        """The next message, if one comes in time, with its effects; `keys` are running."""
        if self._worker is None:
            raise RuntimeError("the runner is closed")
        try:
            message = self._worker.receive(deadline)
        except (EOFError, OSError):
            busy = dict.fromkeys([*keys, *self._compiling()])  # who knows which one it was
            raise self._lost(self._worker.obituary(), [*busy]) from None
        except BaseException:
            self._interrupt()
            raise
        match message:
            case ("started", key) if key in self._under_way:
                self._under_way[key] = True
                self._progress = time.monotonic()
            case ("finished", answer) if answer.key in self._under_way:
                del self._under_way[answer.key]
                self._finished.append(answer)
                self._progress = time.monotonic()
            case ("bug", text):
                self.close()
                raise RuntimeError(f"a bug in the worker:\n{text}")
        return message

    def _compiling(self) -> list[str]:
        began = [key for key, turn in self._under_way.items() if turn]
        return began or [*self._under_way]

    def _lost(self, reason: str, during: Sequence[str]) -> RunnerLost:
        self.close()
        return RunnerLost(reason, during)

    def _check(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise RunnerLost("the worker was stopped by an interrupt", ())

    def _interrupt(self) -> None:
        """A message may have been cut in two: nothing more can be said to this worker."""
        self.close()
        self._interrupted = True


class _Worker:
    """A worker process, its connection, and a directory for its log and what else it leaves."""

    def __init__(self, command: Sequence[str], setup: tuple[object, ...]) -> None:
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
                    env=_environment(folder.name),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C shall not reach it, but killing all of it
                )
            stack.callback(self._end)
            reason = self._greet(setup)
            if reason:
                raise CfpError(
                    f"The process that measures programs could not start: {reason}. If another "
                    "program holds the devices, end it, or measure in this process."
                )
            self._stack = stack.pop_all()

    def _greet(self, setup: tuple[object, ...]) -> str:
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

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def mesh_spec(mesh: Mesh) -> MeshSpec:
    devices = [*mesh.devices.flat]
    ids = tuple(int(device.id) for device in devices)
    return MeshSpec(devices[0].platform, ids, mesh.devices.shape, tuple(map(str, mesh.axis_names)))


def _settings() -> dict[str, Any]:
    found = {name: value for name, value in jax.config.values.items() if _SETTINGS.fullmatch(name)}
    # not all are attributes; those that are may be set for this thread alone
    return {name: getattr(jax.config, name, value) for name, value in found.items()}


def _environment(folder: str) -> dict[str, str]:
    # what is imported there is what is imported here, however it got onto the path
    path = [*(entry or os.getcwd() for entry in sys.path), str(Path(__file__).parents[2])]
    return {
        **os.environ,
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
