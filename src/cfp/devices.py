"""Meshes for the commands: of the machine's devices, or of virtual CPU devices.

JAX fixes the number of virtual CPU devices when its backends start, which the first array does. So
the commands make their mesh before anything else.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from cfp.errors import CfpError
from cfp.layouts import AnyMesh
from cfp.profile.runners import stand_in

MOST_VIRTUAL = 4096  # these take seconds to start and half a gigabyte
MOST_DEVICES = 2**16  # far more than any cluster has: a larger number is a typing mistake
MOST_AXES = 64  # numpy's arrays, in which meshes keep their devices, have no more
_EXTRAS = {"gpu": "cuda13", "tpu": "tpu"}  # extras of the distribution `jax`, by platform
_BEHIND = {"gpu": ("cuda", "rocm")}  # names that JAX_PLATFORMS may have for it
_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def make_mesh(
    shape: Sequence[int], platform: str | None = None, names: Sequence[str] | None = None
) -> Mesh:
    """Returns the first devices of the platform, or of JAX's default one, in a mesh.

    Where these are CPUs there are as many as the mesh needs, unless JAX is already running with
    fewer.
    """
    names = axis_names(len(shape)) if names is None else names
    count = _size(dict(zip(names, shape, strict=True)))
    _before_start(count if count <= MOST_VIRTUAL else 1, platform)
    try:
        devices: list[Any] = jax.devices(platform)
    except RuntimeError as error:
        raise CfpError(_no_devices(platform, str(error))) from None
    if len(devices) < count:
        kind = devices[0].platform
        way = (
            "set jax.config.update('jax_num_cpu_devices', ...) before JAX starts"
            if kind == "cpu"
            else "use --platform cpu for virtual devices"
        )
        raise CfpError(
            f"A mesh of {'x'.join(map(str, shape))} needs {count} devices and JAX has "
            f"{len(devices)} ({kind}): use a smaller mesh, or {way}."
        )
    return Mesh(np.array(devices[:count]).reshape(tuple(shape)), tuple(names))


def absent_mesh(shape: Sequence[int], names: Sequence[str] | None = None) -> AbstractMesh:
    """Returns a mesh that has no devices; local ones will stand in for them, in a worker. So JAX
    opens none in this process, if it has not yet."""
    names = axis_names(len(shape)) if names is None else names
    _size(dict(zip(names, shape, strict=True)))
    _before_start(1, "cpu")
    return AbstractMesh(tuple(shape), tuple(names))


def reading_mesh(axes: Mapping[str, int]) -> Mesh:
    """Returns a mesh to read a plan by: of any size, all of one CPU device. Nothing can run on
    it."""
    count = _size(axes)
    _before_start(1, "cpu")
    devices = np.full(count, jax.devices("cpu")[0]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes))


def axis_names(count: int) -> tuple[str, ...]:
    """Returns the names x, y, z, a3, a4 ..."""
    return (*"xyz", *(f"a{i}" for i in range(3, count)))[:count]


def memory_bytes(mesh: AnyMesh) -> int | None:
    """Returns what the smallest device of the mesh has for programs, or the local device that
    stands in for it; None where devices do not say."""
    if isinstance(mesh, AbstractMesh):
        return stand_in.GPU.find().memory_bytes
    found = []
    for device in mesh.devices.flat:
        if device.process_index == jax.process_index():
            stats: Mapping[str, int] = device.memory_stats() or {}
            found.append(stats.get("bytes_limit"))
    known = [count for count in found if count is not None]
    return min(known) if known and len(known) == len(found) else None


def _no_devices(platform: str | None, said: str) -> str:
    """Says why JAX has no devices of a platform, and what helps."""
    start = f"JAX has no devices of platform `{platform or 'any'}`"
    allowed = jax.config.jax_platforms  # type: ignore[attr-defined]
    if "Unknown backend" not in said or platform not in _EXTRAS:
        reason = (said.splitlines() or ["no reason given"])[0].rstrip(".")
        return f"{start}: {reason}."
    if allowed and not {platform, *_BEHIND.get(platform, ())} & set(allowed.split(",")):
        return f"{start}: JAX_PLATFORMS is `{allowed}`, which leaves it out. Unset it."
    return (
        f"{start}: this JAX was installed without it. Install it with pip install "
        f'"jax[{_EXTRAS[platform]}]", or use --platform cpu for virtual devices.'
    )


def _size(axes: Mapping[str, int]) -> int:
    if len(axes) > MOST_AXES:
        raise CfpError(f"A mesh of {len(axes)} axes is too much: {MOST_AXES} is the most.")
    text = "x".join(map(str, axes.values()))
    if not axes or min(axes.values()) < 1:
        raise CfpError(f"A mesh of [{text}] has no devices: every axis needs at least one.")
    count = math.prod(axes.values())
    if count > MOST_DEVICES:
        raise CfpError(f"A mesh of {text} has {count} devices; {MOST_DEVICES} is the most.")
    return count


def _before_start(count: int, platform: str | None) -> None:
    """Sets the number of CPU devices, if JAX has not started yet; never below what is asked for
    elsewhere."""
    asked = _FORCED.search(os.environ.get("XLA_FLAGS", ""))
    configured = int(getattr(jax.config, "jax_num_cpu_devices", -1))
    count = max(count, configured, int(asked[1]) if asked else 0)
    update: Any = jax.config.update
    try:
        update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has started: its devices can no longer be changed
        return
    if platform == "cpu":
        update("jax_platforms", "cpu")
