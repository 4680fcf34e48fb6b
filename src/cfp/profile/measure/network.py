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
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cfp.errors import CfpError
from cfp.profile.measure.store import Record, Store
from cfp.profile.programs.key import key_of
from cfp.profile.programs.lower import export
from cfp.profile.programs.machine import Machine
from cfp.profile.runners.job import Failed, Job
from cfp.profile.runners.runner import Runner, RunnerLost
from cfp.segments.fill import Fill

SIZES = (256, 2**18)  # float32 numbers: one tells the latency, the other (1 MB) the bandwidth
ALIKE = (5.0, 2.0)  # the most that the times of one network differ by, for each size: latencies
# vary with the load of the hosts, and networks of twice the bandwidth are two
WARMUPS = 2  # runs: the first opens connections
RUNS = 20  # that count, of which the fastest is taken; fewer, but at least
FEW = 5  # of them, once they took
ENOUGH_S = 1.0  # seconds: a network so slow is told apart by its first runs
TIMEOUT_S = 120.0  # seconds for one all-reduce, or to compile it: whoever takes longer hangs
TRIES = 3  # measurements before a network counts as new, which makes all of its programs new


@dataclass(frozen=True, slots=True)
class _Network:
    """A network that was seen before; `times_s` are by axis, and by size for each."""

    name: str
    times_s: tuple[float, ...]


def _networks(record: Record, store: Store) -> list[_Network]:
    """Returns those of the store; none where someone else wrote what it has."""
    try:
        return msgspec.convert(record.document.get("networks"), list[_Network])
    except (msgspec.ValidationError, OverflowError) as error:
        store.distrust([record.name], str(error))
        return []


def find_network(runner: Runner, store: Store, machine: Machine, mesh: Mesh) -> str:
    """Returns the network's name in this store; an empty one where the mesh is of one process."""
    axes = [axis for axis in mesh.axis_names if _leaves(mesh, axis)]
    if not axes:
        return ""
    key = key_of(machine, "networks")
    record = store.get(key)
    known = [] if record is None else _networks(record, store)
    times = [math.inf] * len(axes) * len(SIZES)
    for _ in range(TRIES):
        try:
            now = [_time(runner, mesh, axis, size) for axis in axes for size in SIZES]
        except RunnerLost as lost:
            if time.monotonic() >= runner.ends:
                raise CfpError(
                    "The budget ended before the network between the processes was measured: "
                    "raise it."
                ) from None
            raise CfpError(f"The processes cannot talk to each other: {lost.reason}.") from None
        times = [*map(min, times, now)]
        for one in known:
            if _alike(one.times_s, times):
                return one.name
    name = key_of(machine, "network", times)[:8]
    document = {"networks": [asdict(one) for one in (*known, _Network(name, tuple(times)))]}
    store.put(Record(key, "networks", "networks", machine.show(), document, time.time()))
    return name


def _alike(times: Sequence[float], others: Sequence[float]) -> bool:
    bounds = ALIKE * (len(others) // len(SIZES))
    if len(times) != len(others):
        return False
    pairs = zip(times, others, bounds, strict=True)
    return all(max(a, b) <= bound * min(a, b) for a, b, bound in pairs)


def _leaves(mesh: Mesh, axis: Any) -> bool:
    """Returns whether the devices along the axis are of several processes."""
    at = mesh.axis_names.index(axis)
    lines = mesh.devices.swapaxes(0, at).reshape(mesh.devices.shape[at], -1).T
    return any(len({device.process_index for device in line}) > 1 for line in lines)


def _time(runner: Runner, mesh: Mesh, axis: Any, size: int) -> float:
    """Returns the fastest of a few runs: the load of the machine is not what we want to know."""
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
    deadline = min(time.monotonic() + TIMEOUT_S, runner.ends)
    while not runner.finished(1.0) and time.monotonic() < deadline:
        continue
    runs: list[float] = []
    while len(runs) < WARMUPS + FEW or (len(runs) < WARMUPS + RUNS and sum(runs) < ENOUGH_S):
        left_s = max(runner.ends - time.monotonic(), 0.0)
        seconds = runner.run(key, min(TIMEOUT_S, left_s))
        if isinstance(seconds, Failed):
            raise CfpError(f"The processes cannot talk along mesh axis {axis}: {seconds.reason}")
        runs.append(seconds)
    runner.drop([key])
    return min(runs[WARMUPS:])
