"""A test's double of the GPU that stands in: virtual CPU devices take its place in the worker.

    python -m tests.profile.runners.cpu_stand_in FD

All else is the real thing: the caller's mesh has no devices, programs are lowered for it, compiled
and run in the worker, recorded, made schedules of, and replayed on a network. Here collectives do
run, but only the kernels of the recording count.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from cfp.profile.runners.job import MeshSpec, WorkerGroup
from cfp.profile.runners.stand_in import LocalDevices, StandIn
from cfp.profile.runners.stand_in_worker import StandInSession
from cfp.profile.runners.worker import main, mesh_of, take_settings
from cfp.profile.runners.xplane import Event, Line, is_collective

MEMORY_BYTES = 2**30


def found() -> LocalDevices:
    return LocalDevices("cpu", "cpu", 1, MEMORY_BYTES)


CPU = StandIn(found, __name__, ())


def open_cpus(spec: MeshSpec, settings: Mapping[str, Any], group: WorkerGroup | None) -> Mesh:
    take_settings(settings)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", len(spec.device_ids))
    return mesh_of(spec)


def cpu_kernels(plane: str, lines: Sequence[Line]) -> Iterator[list[Event]]:
    """The operations of every device that are around no other: those are loops and calls."""
    if plane != "/host:CPU":
        return
    devices: dict[object, list[Event]] = {}
    for line in lines:
        operations = [event for event in line.events if "hlo_op" in event.stats]
        operations.sort(key=lambda event: (event.start_ns, -event.end_ns))
        for event, later in itertools.zip_longest(operations, operations[1:]):
            around = later is not None and later.end_ns <= event.end_ns
            if not around and not is_collective(event.name):
                devices.setdefault(event.stats.get("device_ordinal"), []).append(event)
    yield from devices.values()


class CpuSession(StandInSession):
    kernels = staticmethod(cpu_kernels)


if __name__ == "__main__":
    main(int(sys.argv[1]), CpuSession, open_cpus)
