"""A runner in a process of its own, which may crash or hang.

XLA ends the process on a failed check and collectives can wait for ever, so programs never tried
before run in a worker (`cfp.profile.worker`). It is started when first needed. When it dies, or
does not answer in time, all of it is killed, the caller gets `RunnerLost`, and the next call
starts a new one, empty. One thread talks to one worker: requests go out, and while one answer is
awaited whatever else arrives (what has been compiled) is kept.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
from jax.sharding import Mesh

from cfp.profile.child import Worker
from cfp.profile.job import Compiled, Failed, Group, Job, MeshSpec, Shares
from cfp.profile.line_up import default_threads
from cfp.profile.runner import RunnerLost

# the settings of JAX that change what is compiled, how, or for what: the worker's are ours
_SETTINGS = re.compile(
    r"jax_(enable_x64|default_matmul_precision|default_prng_impl|threefry_partitionable"
    r"|use_shardy_partitioner|allow_f16_reductions|compiler_enable_remat_pass"
    r"|\w*optimization\w*|memory_fitting_\w+|\w*compilation_cache\w*|persistent_cache_\w+"
    r"|platforms|\w+_visible_devices)"
)


class ProcessRunner:
    """Implements `cfp.profile.runner.Runner` with a worker process.

    `command` starts the worker, to which a file descriptor is added. A worker that cannot even
    start is a `CfpError`: there is no use in trying again. With a `group` it is one of several.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        compile_threads: int | None = None,
        command: Sequence[str] | None = None,
        compile_timeout_s: float = 600.0,
        group: Group | None = None,
    ) -> None:
        self._spec = mesh_spec(mesh)
        self._group = group
        self._threads = compile_threads or default_threads(mesh)
        # -P: the directory we happen to be in is not a place to import from
        self._command = command or [sys.executable, "-P", "-m", "cfp.profile.worker"]
        self._compile_timeout_s = compile_timeout_s
        self._worker: Worker | None = None
        self._under_way: dict[str, bool] = {}  # being compiled -> its turn has come
        self._progress = 0.0  # when a compilation last began or ended
        self._finished: list[Compiled | Failed] = []
        self._interrupted = False
        self._killed = False

    def start(self) -> None:
        """Starts the worker, if there is none."""
        self._check()
        if self._worker is None:
            setup = (self._spec, _settings(), self._threads, self._group)
            self._worker = Worker(self._command, self._group is not None)
            if self._killed:  # while it was started
                self._worker.end()
            try:
                self._worker.greet(setup)
            except BaseException:
                self.close()
                raise

    def kill(self) -> None:
        """From any thread: the call under way, if there is one, ends with `RunnerLost`, or with the
        `CfpError` of a worker that does not start. For good."""
        self._killed = True
        worker = self._worker
        if worker is not None:
            worker.end()

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
            if self._finished:
                break
            if time.monotonic() >= patience:  # before the deadline: it may be over at once
                reason = f"no answer in {self._compile_timeout_s:g} s"
                raise self._lost(reason, self._compiling(), hung=True)
            if time.monotonic() >= deadline:
                break
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
                    raise self._lost(f"no answer in {timeout_s:g} s", keys, hung=True)

    def _send(self, kind: str, argument: object) -> None:
        self.start()
        assert self._worker is not None
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

    def _lost(self, reason: str, during: Sequence[str], *, hung: bool = False) -> RunnerLost:
        self.close()
        return RunnerLost(reason, during, hung=hung)

    def _check(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise RunnerLost("the worker was stopped by an interrupt", ())

    def _interrupt(self) -> None:
        """A message may have been cut in two: nothing more can be said to this worker."""
        self.close()
        self._interrupted = True


def mesh_spec(mesh: Mesh) -> MeshSpec:
    devices = [*mesh.devices.flat]
    ids = tuple(int(device.id) for device in devices)
    platform, names = devices[0].platform, tuple(map(str, mesh.axis_names))
    # of one process: as many as the ids go, since a mesh may leave some out
    alone = jax.process_count() == 1
    local = max(ids) + 1 if alone else jax.local_device_count(platform)
    return MeshSpec(platform, ids, mesh.devices.shape, names, local)


def _settings() -> dict[str, Any]:
    found = {name: value for name, value in jax.config.values.items() if _SETTINGS.fullmatch(name)}
    # not all are attributes; those that are may be set for this thread alone
    return {name: getattr(jax.config, name, value) for name, value in found.items()}
