"""What a process has of a mesh, and how it lines up with the others before a program is timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def local_devices(mesh: Mesh) -> list[Any]:
    """Returns the devices of the mesh that are this process's."""
    return [device for device in mesh.devices.flat if device.process_index == jax.process_index()]


def platform_of(mesh: Mesh) -> str:
    device: Any = mesh.devices.flat[0]
    return str(device.platform)


def one_device(mesh: Mesh) -> Mesh | None:
    """Returns a mesh of one device, the first of process 0's; None in the other processes."""
    if jax.process_index() != 0:
        return None
    first = np.array(local_devices(mesh)[:1]).reshape((1,) * mesh.devices.ndim)
    return Mesh(first, mesh.axis_names)


def wait_for_others(mesh: Mesh) -> Callable[[], None]:
    """Returns a call that returns when all processes of the mesh have made it. The first one
    compiles."""
    if len(local_devices(mesh)) == mesh.size:
        return lambda: None
    spec: Any = PartitionSpec
    everywhere = NamedSharding(mesh, spec(mesh.axis_names))
    ones = jax.make_array_from_callback((mesh.size,), everywhere, lambda index: np.ones(1, "int32"))
    count: Any = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, spec()))
    wait: Any = jax.block_until_ready
    return lambda: wait(count(ones))


def default_threads(platform: str, sharing: int = 1) -> int:
    """Returns how many threads compile: all cores where programs do not run meanwhile (on CPU
    devices), else all but one; memory allows a few. `sharing` processes have them together."""
    affinity = getattr(os, "sched_getaffinity", None)  # what a container leaves us; Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(8, (cores if platform == "cpu" else cores - 1) // sharing))
