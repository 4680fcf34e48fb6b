"""What happens in the process that owns the devices: compile, fill the inputs, run, record.

Programs are compiled by a few threads (XLA releases the interpreter), so the devices need not wait.
Two programs whose StableHLO, shardings and donations are the same share one executable, also when
both are under way at once: training steps repeat their layers, and compiling is most of the time.
Processes that run the same programs compile a part of them each (`exchange`).

A run is timed from the call until every result is ready on every device; where other processes run
their part of it, all line up first. A program for one device alone is process 0's; in the others it
is compiled at once and takes no time. Results that are fed back replace the donated
arguments, as in a training loop; all else is made at the first run and kept, while the device has
room for it: else those of other programs are freed, and made again. Nothing here warms up, repeats
or averages.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from cfp.links.kernels import Kernels
from cfp.profile.runners import xplane
from cfp.profile.runners.exchange import Exchange
from cfp.profile.runners.executable import Executable, executable_of, lower, make_input, reason
from cfp.profile.runners.job import Compiled, Failed, Job, Memory, Shares
from cfp.profile.runners.local_devices import local_devices, one_device, wait_for_others

_log = logging.getLogger(__name__)

ROOM = 0.9  # of a device's memory for the program that runs and the inputs of the others: what is
# free lies in pieces, and the allocator tries for 10 s before it says that none is large enough


class _Compiling:
    """An executable, or why there is none; shared by the jobs that are the same program."""

    def __init__(self) -> None:
        self.done: Future[Executable | str] = Future()


class _Entry:
    """A job, and what is there of it so far. `number` is the same in all processes."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.seconds = 0.0  # the time of compiling, if it was for this job and here
        self.name = ""  # in the exchange
        self.task: Future[None] | None = None
        self.done: Future[Executable | str] = Future()
        self.program: _Compiling | None = None
        self.inputs: list[jax.Array] | None = None


class Session:
    """Calls `emit`, from the compiling threads, with what has become of a job, and `started` with
    the key of a job whose turn has come; neither for jobs dropped by then."""

    def __init__(
        self,
        mesh: Mesh,
        compile_threads: int,
        emit: Callable[[Compiled | Failed], None],
        started: Callable[[str], None] | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.mesh = mesh
        self._one = one_device(mesh)
        self._room_bytes = ROOM * _memory_bytes(mesh)
        self._exchange = exchange
        self._wait_for_others = self.waiting(mesh)
        self._emit = emit
        self._started = started
        self._pool = ThreadPoolExecutor(compile_threads, thread_name_prefix="cfp-compile")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="cfp-load")  # mostly waits
        self._submitted = 0
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        # weak: an executable lives as long as a job that uses it
        self._programs: weakref.WeakValueDictionary[str, _Compiling] = weakref.WeakValueDictionary()

    def submit(self, job: Job) -> None:
        """Starts compiling, and returns at once."""
        self.drop([job.key])
        self._submitted += 1
        entry = self._entries[job.key] = _Entry(job, self._submitted)
        entry.task = self._pool.submit(self._compile, entry)

    def run(self, key: str, mark: str = "") -> float | Failed:
        """Runs a program once: seconds until the last device of this process is done. `mark` names
        the run in the profiler's recording."""
        entry = self._entries[key]
        alone = entry.job.alone
        if alone and self._one is None:
            return 0.0
        executable = entry.done.result()
        if isinstance(executable, str):
            return Failed(key, executable)
        wait: Any = jax.block_until_ready
        self._make_room(entry, executable)
        try:
            inputs = entry.inputs or [*map(make_input, entry.job.inputs, executable.shardings)]
            entry.inputs = None  # some are donated: if the run fails, they are gone
            wait(inputs)
            if not alone:
                self._wait_for_others()
            with jax.profiler.TraceAnnotation(mark) if mark else contextlib.nullcontext():
                start = time.perf_counter()
                results = executable.call(*inputs)
                wait(results)
                seconds = time.perf_counter() - start
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this program's
            return Failed(key, reason(error))
        for result, made in zip(executable.order, results, strict=True):
            if result in entry.job.feedback:
                inputs[entry.job.feedback[result]] = made
        entry.inputs = None if entry.job.frees else inputs
        return seconds

    def _make_room(self, entry: _Entry, executable: Executable) -> None:
        """Frees inputs of other programs until this one has the memory that it needs."""
        held = {
            other: ready.memory.argument_bytes
            for other in self._entries.values()
            if other is not entry and other.inputs is not None
            if isinstance(ready := other.done.result(), Executable)
        }
        needs_bytes = executable.memory.total_bytes + sum(held.values())
        for other, held_bytes in held.items():
            if needs_bytes <= self._room_bytes:
                return
            other.inputs = None
            needs_bytes -= held_bytes

    def time_shares(self, keys: Sequence[str]) -> dict[str, Shares]:
        """Runs programs under the profiler, as often as they are listed. Programs that fail are
        left out; so are all, if the profiler is taken, but they run: other processes wait in their
        collectives. Nor is there anything to tell of one device alone."""
        keys = [key for key in keys if not self.alone(key)]
        distinct = dict.fromkeys(keys)  # in order: every process of several runs them alike
        cold = [key for key in distinct if self._entries[key].inputs is None]  # not to be recorded
        failed = {key for key in cold if isinstance(self.run(key), Failed)}
        marks: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="cfp-recording-") as folder:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every Python call would be in the recording
            stop: Any = jax.profiler.stop_trace
            try:
                jax.profiler.start_trace(folder, profiler_options=options)
            except Exception as error:  # noqa: BLE001 - someone else is profiling: not our failure
                _log.warning("No traces: the profiler did not start: %s", reason(error))
                for key in keys:
                    if key not in failed:
                        self.run(key)
                return {}
            try:
                for number, key in enumerate(keys):
                    if key in failed:
                        continue
                    mark = f"cfp:{number}"
                    if isinstance(self.run(key, mark), Failed):
                        failed.add(key)
                    marks[mark] = key
            finally:
                stop()
            (file,) = Path(folder).rglob("*.xplane.pb")
            data = jax.profiler.ProfileData.from_file(str(file))
            marks = {mark: key for mark, key in marks.items() if key not in failed}
            return self.shares(data, marks)

    def waiting(self, mesh: Mesh) -> Callable[[], None]:
        """Returns a call that returns when all processes are about to run a program."""
        return wait_for_others(mesh)

    def shares(self, data: jax.profiler.ProfileData, marks: Mapping[str, str]) -> dict[str, Shares]:
        """Returns the time shares of programs, by key, from a recording of the marked runs."""
        return xplane.shares(data, marks, len(local_devices(self.mesh)))

    def kernels_of(self, executable: Executable) -> Kernels | None:
        """Returns what a compiled program says of its kernels, where another program's times may do
        for them: not here, where its collectives run, too."""
        return None

    def alone(self, key: str) -> bool:
        """Returns whether a program is for one device alone."""
        return self._entries[key].job.alone

    def text(self, key: str) -> str:
        """Returns a compiled program as text."""
        executable = self._entries[key].done.result()
        assert isinstance(executable, Executable), executable
        return str(executable.call.as_text())

    def drop(self, keys: Sequence[str]) -> None:
        """Forgets programs: their inputs, and executables that no other program shares."""
        for key in keys:
            with self._lock:
                entry = self._entries.pop(key, None)
            if entry is not None:
                entry.program = entry.inputs = None  # now, not when a cycle is collected
                if entry.task is not None:
                    entry.task.cancel()  # if its turn has not come yet
                if self._exchange is not None:
                    self._exchange.forget(entry.name)

    def close(self) -> None:
        """Frees everything. A compilation under way goes on, for nothing."""
        for pool in (self._pool, self._loading):
            pool.shutdown(wait=False, cancel_futures=True)
        self.drop([*self._entries])

    def _compile(self, entry: _Entry) -> None:
        if self._started is not None:
            self._started(entry.job.key)
        mesh = self._one if entry.job.alone else self.mesh
        if mesh is None:
            self._emit(Compiled(entry.job.key, 0.0, Memory(0, 0, 0, 0)))
            return
        start = time.perf_counter()
        try:
            lowered, digest = lower(entry.job, mesh)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this program's
            self._finish(entry, reason(error))
            return
        with self._lock:
            program = self._programs.get(digest)
            first = program is None
            if program is None:
                program = self._programs[digest] = _Compiling()
        entry.program = program
        # not waiting for a thread that compiles the same: this one has other things to do
        program.done.add_done_callback(lambda done: self._finish(entry, done.result()))
        if not first:
            return
        exchange, entry.name = self._exchange, f"{entry.number}/{digest}"
        make = functools.partial(self._fulfil, entry, program, digest, mesh)
        if exchange is None or entry.job.alone:
            make(lowered.compile, start)
        elif exchange.claim(entry.name):
            make(functools.partial(exchange.compile, lowered, entry.name), start)
        else:
            load = functools.partial(exchange.load, lowered, entry.name)
            self._loading.submit(make, load)

    def _fulfil(
        self,
        entry: _Entry,
        program: _Compiling,
        digest: str,
        mesh: Mesh,
        compiled: Callable[[], jax.stages.Compiled],
        start: float | None = None,
    ) -> None:
        """Compiles a program. With a `start`, the time from then on is what compiling takes."""
        try:
            found = executable_of(compiled(), entry.job, mesh)
            kernels = None if entry.job.alone else self.kernels_of(found)
            made: Executable | str = replace(found, kernels=kernels)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this program's
            with self._lock:
                del self._programs[digest]  # asked for again, it is tried again
            made = reason(error)
        entry.seconds = 0.0 if start is None else time.perf_counter() - start
        program.done.set_result(made)

    def _finish(self, entry: _Entry, executable: Executable | str) -> None:
        key = entry.job.key
        entry.done.set_result(executable)
        with self._lock:
            if self._entries.get(key) is not entry:
                return
        if isinstance(executable, str):
            self._emit(Failed(key, executable))
        else:
            needs, sends = executable.memory, executable.collectives
            self._emit(Compiled(key, entry.seconds, needs, sends, executable.kernels))


def _memory_bytes(mesh: Mesh) -> float:
    """Returns the memory of one device, as far as it says; a host's is not counted."""
    stats: Mapping[str, int] = next(iter(local_devices(mesh))).memory_stats() or {}
    return stats.get("bytes_limit", math.inf)
