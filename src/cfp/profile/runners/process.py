"""A runner in a process of its own, which may crash or hang.

XLA ends the process on a failed check and collectives can wait for ever, so programs never tried
before run in a worker (`runners.worker`). It is started when first needed. When it dies, or does
not answer in time, all of it is killed, the caller gets `RunnerLost`, and the next call
starts a new one, empty. One thread talks to one worker: requests go out, and while one answer is
awaited whatever else arrives (what has been compiled) is kept.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import cast

import jax
from jax.sharding import Mesh

from cfp.cluster.wire import Message, WireError
from cfp.profile.runners.child import Worker
from cfp.profile.runners.job import Compiled, Failed, Job, MeshSpec, Shares, WorkerGroup
from cfp.profile.runners.local_devices import default_threads, platform_of
from cfp.profile.runners.messages import (
    Answer,
    Bug,
    Drop,
    Run,
    Setup,
    Started,
    Submit,
    TimeShares,
    Value,
)
from cfp.profile.runners.runner import RunnerLost
from cfp.profile.runners.settings import worker_settings

ALONE = "--xla_gpu_shard_autotuning=false"  # tunes kernels without the other processes


class ProcessRunner:
    """Implements `cfp.profile.runners.runner.Runner` with a worker process.

    `command` starts the worker, to which a file descriptor is added. A worker that cannot even
    start is a `CfpError`: there is no use in trying again. `flags` are XLA's, beside those of this
    process. With a `group` it is one of several.
    """

    def __init__(
        self,
        mesh: Mesh | MeshSpec,
        *,
        compile_threads: int | None = None,
        command: Sequence[str] | None = None,
        flags: Sequence[str] = (),
        compile_timeout_s: float = 600.0,
        group: WorkerGroup | None = None,
    ) -> None:
        self._spec = mesh if isinstance(mesh, MeshSpec) else mesh_spec(mesh)
        self._group = group
        # processes that tune kernels together wait for each other, but they compile in any order
        self._flags = [*flags, *([] if group is None else [ALONE])]
        self._threads = compile_threads or default_threads(self._spec.platform)
        # -P: the directory we happen to be in is not a place to import from
        self._command = command or [sys.executable, "-P", "-m", "cfp.profile.runners.worker"]
        self._compile_timeout_s = compile_timeout_s
        self._worker: Worker | None = None
        self._under_way: dict[str, bool] = {}  # being compiled -> its turn has come
        self._progress = 0.0  # when a compilation last began or ended
        self._finished: list[Compiled | Failed] = []
        self._interrupted = False
        self._killed = False
        self.ends = math.inf

    def start(self) -> None:
        """Starts the worker, if there is none."""
        self._check()
        if self._worker is None:
            setup = Setup(self._spec, worker_settings(), self._threads, self._group)
            self._worker = Worker(self._command, self._flags)
            if self._killed:  # while it was started
                self._worker.end()
            try:
                ready = self._worker.greet(setup, self.ends)
            except BaseException:
                self.close()
                raise
            if not ready:
                self.close()
                reason = "the worker did not start before the budget ended"
                raise RunnerLost(reason, (), hung=True, outside=True)

    def kill(self) -> None:
        """Ends the worker for good, from any thread: the call under way, if there is one, ends with
        `RunnerLost`, or with the `CfpError` of a worker that does not start."""
        self._killed = True
        worker = self._worker
        if worker is not None:
            worker.end()

    def submit(self, job: Job) -> None:
        self._send(Submit(job))
        if not self._under_way:
            self._progress = time.monotonic()
        self._under_way[job.key] = False

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        """Returns at once with the programs that are compiled, or when nothing is under way."""
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
                raise self._hung(self._compile_timeout_s, self._compiling())
            if time.monotonic() >= deadline:
                break
        found, self._finished = self._finished, []
        return found

    def run(self, key: str, timeout_s: float) -> float | Failed:
        return cast(float | Failed, self._ask(Run(key), [key], timeout_s))

    def time_shares(self, keys: Sequence[str], timeout_s: float) -> Mapping[str, Shares]:
        return cast(dict[str, Shares], self._ask(TimeShares(tuple(keys)), keys, timeout_s))

    def drop(self, keys: Sequence[str]) -> None:
        if self._worker is None:
            return
        for key in keys:
            self._under_way.pop(key, None)
        self._finished = [answer for answer in self._finished if answer.key not in keys]
        self._send(Drop(tuple(keys)))

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

    def _ask(self, request: Run | TimeShares, keys: Sequence[str], timeout_s: float) -> Value:
        self._send(request)
        deadline = time.monotonic() + timeout_s
        while True:
            match self._receive(deadline, keys):
                case Answer(value=value):
                    return value
                case None if time.monotonic() >= deadline:
                    raise self._hung(timeout_s, keys)

    def _send(self, message: Message) -> None:
        self.start()
        assert self._worker is not None
        try:
            self._worker.send(message, self.ends)
        except WireError:
            raise  # nothing of it was sent
        except OSError:
            raise self._gone(self._worker, self._compiling()) from None
        except BaseException:
            self._interrupt()
            raise

    def _receive(self, deadline: float, keys: Sequence[str]) -> Message | None:
        """Returns the next message, if one comes in time, with its effects; `keys` are running."""
        if self._worker is None:
            raise RuntimeError("the runner is closed")
        try:
            message = self._worker.receive(deadline)
        except (EOFError, OSError):
            busy = dict.fromkeys([*keys, *self._compiling()])  # who knows which one it was
            raise self._gone(self._worker, [*busy]) from None
        except WireError as error:
            self.close()
            raise RunnerLost(str(error).rstrip("."), keys) from None
        except BaseException:
            self._interrupt()
            raise
        match message:
            case Started(key=key) if key in self._under_way:
                self._under_way[key] = True
                self._progress = time.monotonic()
            case Compiled(key=key) | Failed(key=key) as answer if key in self._under_way:
                del self._under_way[key]
                self._finished.append(answer)
                self._progress = time.monotonic()
            case Bug(text=text):
                self.close()
                raise RuntimeError(f"a bug in the worker:\n{text}")
        return message

    def _compiling(self) -> list[str]:
        began = [key for key, turn in self._under_way.items() if turn]
        return began or [*self._under_way]

    def _gone(self, worker: Worker, during: Sequence[str]) -> RunnerLost:
        """Returns the error of a worker that has ended by itself, or was ended."""
        reason = worker.obituary()
        outside = worker.killed_from_outside()
        self.close()
        return RunnerLost(reason, during, outside=outside)

    def _hung(self, timeout_s: float, during: Sequence[str]) -> RunnerLost:
        self.close()
        return RunnerLost(f"no answer in {round(timeout_s, 1):g} s", during, hung=True)

    def _check(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise RunnerLost("the worker was stopped by an interrupt", ())

    def _interrupt(self) -> None:
        """Ends the worker: a message may have been sent in part, so nothing more can be said to
        it."""
        self.close()
        self._interrupted = True


def mesh_spec(mesh: Mesh) -> MeshSpec:
    devices = [*mesh.devices.flat]
    ids = tuple(int(device.id) for device in devices)
    platform, names = platform_of(mesh), tuple(map(str, mesh.axis_names))
    # one process has as many as the ids go, since a mesh may leave some out
    alone = jax.process_count() == 1
    local = max(ids) + 1 if alone else jax.local_device_count(platform)
    return MeshSpec(platform, ids, mesh.devices.shape, names, local)
