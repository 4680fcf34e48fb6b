"""The worker whose devices stand in for those of a mesh that is not there.

    python -m cfp.profile.runners.stand_in_worker FD

It is a worker like the other (`worker`), but for three things: JAX is told of devices that are not
there, nobody waits for them, and a recording of a run becomes the program's schedule with its
measured kernels, which any network can be put under (`cfp.links.replay`).

A kernel's time is what it adds to those before it, with the gap before it, up to `GAP_NS`. The host
is late with the kernels of a short program, and ahead of the device in a whole step: where a kernel
was launched after those before it had ended, its gap counts as those of the recording's other
kernels do on average.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.profiler import ProfileData
from jax.sharding import Mesh

from cfp.links.kernels import Kernels, read_kernels
from cfp.links.schedule import NotReplayable, read_schedule
from cfp.profile.runners.executable import Executable
from cfp.profile.runners.job import MeshSpec, Shares, WorkerGroup
from cfp.profile.runners.session import Session
from cfp.profile.runners.worker import main, mesh_of, take_settings
from cfp.profile.runners.xplane import LAUNCH, Event, Line, communicates, read_planes

# what a plane of a recording, by its name and its lines, has of kernels: a list for every device
KernelLines = Callable[[str, Sequence[Line]], Iterable[list[Event]]]
GAP_NS = 5e3  # nanoseconds: a device that has the next kernel in its queue starts it within 4
# microseconds; a longer gap is the host's, where a recording does not say when it was launched
_GRAPH = "command_buffer"  # how XLA names a CUDA graph; its kernels have names of their own
UNRECORDED = "the profiler recorded nothing of it, so that its time is not known"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one run of a program takes on an average device: the seconds in each instruction, by its
    name, and the host's, before the first kernel begins and after the last ends."""

    kernels_s: Mapping[str, float]
    host_s: float


def recorded_runs(
    data: ProfileData, marks: Mapping[str, str], kernels: KernelLines
) -> dict[str, Recorded]:
    """Returns what the marked runs take, by key of `marks`, as of `xplane.shares`. `kernels` says
    what the events of a plane are kernels of."""
    planes = list(read_planes(data))
    threads = [line for name, lines in planes if name == "/host:CPU" for line in lines]
    host = [event for thread in threads for event in thread.events]
    launched = {event.stats[LAUNCH]: event.end_ns for event in host if LAUNCH in event.stats}
    devices = [found for name, lines in planes for found in kernels(name, lines)]
    runs: dict[str, list[_Run]] = defaultdict(list)
    for event in host:
        if event.name in marks:
            runs[marks[event.name]].append(_run(event, devices, launched))
    of_all = [row.gap_ns for found in runs.values() for run in found for row in run.rows]
    known = [gap_ns for gap_ns in of_all if gap_ns is not None]
    usual_ns = statistics.fmean(known) if known else 0.0
    return {key: _average(found, usual_ns) for key, found in runs.items()}


@dataclass(frozen=True, slots=True)
class _Row:
    """A kernel: what it adds to those before it, and the gap before it, None where the host was
    late. It counts by its device's share."""

    name: str
    own_ns: float
    gap_ns: float | None
    share: float


@dataclass(frozen=True, slots=True)
class _Run:
    rows: list[_Row]
    host_ns: float


def _run(run: Event, devices: Sequence[list[Event]], launched: Mapping[object, float]) -> _Run:
    """Returns one run: the kernels of each device that began in it."""
    inside = [
        [one for one in device if run.start_ns <= one.start_ns < run.end_ns] for device in devices
    ]
    busy = [device for device in inside if device]
    rows = [row for device in busy for row in _in_a_row(device, launched, 1 / len(busy))]
    spans_ns = [max(k.end_ns for k in of) - min(k.start_ns for k in of) for of in busy]
    span_ns = statistics.fmean(spans_ns) if spans_ns else 0.0
    return _Run(rows, max(run.end_ns - run.start_ns - span_ns, 0.0))


def _average(runs: Sequence[_Run], usual_ns: float) -> Recorded:
    """Returns an average run, in which unknown gaps are the usual one."""
    kernels_s: dict[str, float] = defaultdict(float)
    for run in runs:
        for row in run.rows:
            gap_ns = usual_ns if row.gap_ns is None else row.gap_ns
            kernels_s[row.name] += (row.own_ns + gap_ns) * 1e-9 * row.share / len(runs)
    return Recorded(kernels_s, statistics.fmean(run.host_ns for run in runs) * 1e-9)


def gpu_kernels(plane: str, lines: Sequence[Line]) -> Iterator[list[Event]]:
    """Yields the kernels of one GPU, named by their instructions; inside a CUDA graph that is the
    kernel's own name. Nothing that communicates is among them."""
    if not re.fullmatch(r"/device:GPU:\d+", plane):
        return
    found = []
    for line in lines:
        for event in line.events if line.name.startswith("Stream") else ():
            if not communicates(event):
                op = event.stats.get("hlo_op")
                named = isinstance(op, str) and op and not op.startswith(_GRAPH)
                found.append(replace(event, name=str(op)) if named else event)
    yield found


def _in_a_row(
    events: Iterable[Event], launched: Mapping[object, float], share: float
) -> Iterator[_Row]:
    """Yields the kernels of one device in order of time; `launched` has the ends of launches."""
    until_ns: float | None = None
    for event in sorted(events, key=lambda one: (one.start_ns, one.end_ns)):
        before_ns = event.start_ns if until_ns is None else until_ns
        gap_ns = min(max(event.start_ns - before_ns, 0.0), GAP_NS)
        launched_ns = launched.get(event.stats.get(LAUNCH), -math.inf)
        late = until_ns is not None and launched_ns > until_ns
        own_ns = max(event.end_ns - max(event.start_ns, before_ns), 0.0)
        until_ns = max(before_ns, event.end_ns)
        yield _Row(event.name, own_ns, None if late else gap_ns, share)


class StandInSession(Session):
    """A session in which collectives take no time, or none that counts."""

    kernels: KernelLines = staticmethod(gpu_kernels)

    def waiting(self, mesh: Mesh) -> Callable[[], None]:
        """Returns a call that does nothing: the other processes are not there."""
        return lambda: None

    def time_shares(self, keys: Sequence[str]) -> dict[str, Shares]:
        """Returns the schedule of every program, or why there is none."""
        found = super().time_shares(keys)
        several = [key for key in keys if not self.alone(key)]
        return {
            key: found.get(key, Shares(0.0, 0.0, 0.0, unreplayed=UNRECORDED)) for key in several
        }

    def shares(self, data: ProfileData, marks: Mapping[str, str]) -> dict[str, Shares]:
        found = recorded_runs(data, marks, self.kernels)
        return {key: self._scheduled(key, one) for key, one in found.items()}

    def kernels_of(self, executable: Executable) -> Kernels | None:
        """Returns what says which other programs have the same kernels; None where a program cannot
        be replayed, which a run of it will say."""
        try:
            return read_kernels(str(executable.call.as_text()), self._axes())
        except NotReplayable:
            return None

    def _axes(self) -> dict[str, int]:
        return {str(name): int(size) for name, size in self.mesh.shape.items()}

    def _scheduled(self, key: str, run: Recorded) -> Shares:
        try:
            schedule = read_schedule(self.text(key), self._axes(), run.kernels_s)
        except NotReplayable as error:
            return Shares(0.0, 0.0, 0.0, unreplayed=str(error))
        compute_s = sum(run.kernels_s.values())
        return Shares(compute_s, 0.0, 0.0, schedule=schedule, host_s=run.host_s)


def open_gpus(spec: MeshSpec, settings: Mapping[str, Any], group: WorkerGroup | None) -> Mesh:
    """Returns a mesh of GPUs of which `spec.local` are there."""
    assert group is None, "one process stands in for all"
    take_settings(settings)
    update: Any = jax.config.update
    update("jax_platforms", "cuda,cpu")
    update("jax_cuda_visible_devices", ",".join(map(str, range(spec.local))))
    # partitions x hosts of each x devices of each host, which must be as many as there are
    update("jax_mock_gpu_topology", f"1x{len(spec.device_ids) // spec.local}x{spec.local}")
    found = len(jax.devices("gpu"))
    if found != len(spec.device_ids):
        raise ValueError(
            f"XLA shows {found} GPUs where {len(spec.device_ids)} were asked for: this version "
            "cannot stand in for so many"
        )
    return mesh_of(spec)


if __name__ == "__main__":
    main(int(sys.argv[1]), StandInSession, open_gpus)
