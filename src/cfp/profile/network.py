"""Which network lies between the processes of a mesh, by measuring it.

Two clusters of the same machines may differ in nothing but their network, and one network changes:
so its speed is measured, by a small and a large all-reduce along every axis of the mesh that leaves
a process. Times like those of a network seen before mean that network, and its measurements count;
otherwise it is a new one. A busy machine makes any network look slow: before it counts as new, it
is measured again, and the fastest times count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cfp.errors import CfpError
from cfp.profile.job import Failed, Job
from cfp.profile.key import key_of
from cfp.profile.lower import export
from cfp.profile.machine import Machine
from cfp.profile.runner import Runner, RunnerLost
from cfp.profile.store import Record, Store
from cfp.segments.fill import Fill

SIZES = (256, 2**18)  # float32 numbers
ALIKE = (5.0, 2.0)  # the most that the times of one network differ by, for each size
WARMUPS, RUNS = 2, 20
ENOUGH_S = 1.0  # of runs, of which there are at least `FEW`
FEW = 5
TIMEOUT_S = 120.0
TRIES = 3


def find_network(runner: Runner, store: Store, machine: Machine, mesh: Mesh) -> str:
    """Its name in this store; none where the mesh is of one process."""
    axes = [axis for axis in mesh.axis_names if _leaves(mesh, axis)]
    if not axes:
        return ""
    key = key_of(machine, "networks")
    record = store.get(key)
    known: list[dict[str, Any]] = [] if record is None else record.document["networks"]
    times = [math.inf] * len(axes) * len(SIZES)
    for _ in range(TRIES):
        try:
            now = [_time(runner, mesh, axis, size) for axis in axes for size in SIZES]
        except RunnerLost as lost:
            raise CfpError(f"The processes cannot talk to each other: {lost.reason}.") from None
        times = [*map(min, times, now)]
        for one in known:
            if _alike(one["times_s"], times):
                return str(one["name"])
    name = key_of(machine, "network", times)[:8]
    known = [*known, {"name": name, "times_s": times}]
    document = {"networks": known}
    store.put(Record(key, "networks", "networks", machine.show(), document, time.time()))
    return name


def _alike(times: Sequence[float], others: Sequence[float]) -> bool:
    bounds = ALIKE * (len(times) // len(SIZES))
    pairs = zip(times, others, bounds, strict=True)
    return all(max(a, b) <= bound * min(a, b) for a, b, bound in pairs)


def _leaves(mesh: Mesh, axis: Any) -> bool:
    """Devices along the axis are of several processes."""
    at = mesh.axis_names.index(axis)
    lines = mesh.devices.swapaxes(0, at).reshape(mesh.devices.shape[at], -1).T
    return any(len({device.process_index for device in line}) > 1 for line in lines)


def _time(runner: Runner, mesh: Mesh, axis: Any, size: int) -> float:
    """The fastest of a few: it is not the machine's load that we want to know."""
    spec: Any = PartitionSpec
    count = mesh.shape[axis]
    inputs = (Fill((count, size), "float32", "normal"),)
    added: Any = jax.jit(
        lambda x: jnp.sum(x, axis=0),
        in_shardings=NamedSharding(mesh, spec(axis)),
        out_shardings=NamedSharding(mesh, spec()),
    )
    key = f"network {axis} {size}"
    runner.submit(Job(key, f"the network along {axis}", export(added, inputs), inputs))
    deadline = time.monotonic() + TIMEOUT_S
    while not runner.finished(1.0) and time.monotonic() < deadline:
        continue
    runs: list[float] = []
    while len(runs) < WARMUPS + FEW or (len(runs) < WARMUPS + RUNS and sum(runs) < ENOUGH_S):
        seconds = runner.run(key, TIMEOUT_S)
        if isinstance(seconds, Failed):
            raise CfpError(f"The processes cannot talk along mesh axis {axis}: {seconds.reason}")
        runs.append(seconds)
    runner.drop([key])
    return min(runs[WARMUPS:])
