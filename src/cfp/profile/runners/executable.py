"""What becomes of a job: a program to compile, an executable that was checked, and its inputs."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, Sharding

from cfp.links.collectives import MeshCollective, mesh_collectives
from cfp.links.kernels import Kernels
from cfp.profile.runners.job import Job, Memory
from cfp.segments.fill import SEED, Fill

POOL = 65521  # random numbers in an input before they repeat; a prime, so that rows do not
_EXHAUSTED = "RESOURCE_EXHAUSTED"  # as XLA says that there is too little memory
_BESIDE = re.compile(rf"^{_EXHAUSTED}: (Out of memory (while )?)?|" + r" *\[[^][]*='[^']*'\]")
_NAMES = re.compile(
    r'jax\.result_info = "[^"]*"|@call_exported_\w+'
)  # names that do not change a program


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled job. Its arguments lie in `shardings`, and its results are those of the job in the
    given `order`."""

    call: jax.stages.Compiled
    shardings: tuple[Sharding, ...]
    order: tuple[int, ...]
    memory: Memory
    collectives: tuple[MeshCollective, ...] | None
    kernels: Kernels | None = None


def lower(job: Job, mesh: Mesh) -> tuple[jax.stages.Lowered, str]:
    """Returns the program, ready to be compiled, and a name for it by content."""
    exported = jax.export.deserialize(bytearray(job.module))
    call: Any = exported.call
    shape: Any = jax.ShapeDtypeStruct
    given = [shape(fill.shape, jnp.dtype(fill.dtype)) for fill in job.inputs]
    takes = [shape(aval.shape, aval.dtype) for aval in exported.in_avals]
    gives = [shape(aval.shape, aval.dtype) for aval in exported.out_avals]
    if given != takes:
        raise ValueError(f"the program takes {takes}, and the job gives {given}")
    if any(gives[result] != takes[argument] for result, argument in job.feedback.items()):
        raise ValueError(f"results {gives} cannot be fed back as arguments {takes}: {job.feedback}")

    order = _order(job, len(gives))
    lie = exported.out_shardings_jax(mesh)

    def program(*flat: Any) -> tuple[Any, ...]:
        arguments, named = jax.tree.unflatten(exported.in_tree, flat)
        results = jax.tree.leaves(call(*arguments, **named))
        return tuple(results[i] for i in order)

    wrapped = jax.jit(
        program,
        in_shardings=tuple(exported.in_shardings_jax(mesh)),
        out_shardings=tuple(lie[i] for i in order),
        donate_argnums=tuple(sorted(job.feedback.values())),
    )
    lowered = wrapped.lower(*takes)
    # the text has shardings and donations, but no locations
    text = _NAMES.sub("", lowered.as_text()) + str(sorted(job.feedback.items()))
    return lowered, hashlib.sha256(text.encode()).hexdigest()


def _order(job: Job, count: int) -> list[int]:
    """Returns the results in the order in which the program gives them: first those that are fed
    back, as their arguments are ordered. JAX gives a donated buffer to the next result of its shape
    and type, and any other than its own successor has to be copied first."""
    return sorted(range(count), key=lambda result: (job.feedback.get(result, math.inf), result))


def executable_of(compiled: jax.stages.Compiled, job: Job, mesh: Mesh) -> Executable:
    """Raises if a result that is fed back has another sharding than its argument."""
    shardings = tuple(jax.tree.leaves(compiled.input_shardings))
    results = jax.tree.leaves(compiled.output_shardings)
    order = tuple(_order(job, len(results)))
    for result, argument in job.feedback.items():
        there, back = shardings[argument], results[order.index(result)]
        if not back.is_equivalent_to(there, len(job.inputs[argument].shape)):
            raise ValueError(
                f"result {result} cannot be fed back as argument {argument}: "
                f"one is in {back}, the other in {there}"
            )
    return Executable(compiled, shardings, order, _needs(compiled), _collectives(compiled, mesh))


def _needs(compiled: jax.stages.Compiled) -> Memory:
    """Raises where the backend does not say it, or says 0 of everything, as JAX did on GPUs for a
    while: a plan would seem to need no memory."""
    memory = compiled.memory_analysis()
    needs = Memory(0, 0, 0, 0)
    if memory is not None:
        needs = Memory(
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            aliased_bytes=memory.alias_size_in_bytes,
        )
    if needs == Memory(0, 0, 0, 0):
        raise ValueError("this backend does not say how much memory a program needs")
    return needs


def _collectives(compiled: jax.stages.Compiled, mesh: Mesh) -> tuple[MeshCollective, ...] | None:
    """Returns what the program sends; None where a backend shows no text of it, or one that we
    cannot read. Nothing that is measured depends on it: it is told to people."""
    text = compiled.as_text()
    if text is None:
        return None
    try:
        return mesh_collectives(text, tuple(mesh.devices.shape))
    except ValueError:
        return None


def make_input(fill: Fill, sharding: Sharding) -> jax.Array:
    """Returns an input, shard by shard. A device with a memory of its own repeats the pool itself:
    what a host makes and sends it at a few GB/s would take longer than the step."""
    pool = _pool(replace(fill, shape=(POOL,)))
    indices: Mapping[Any, Any] = sharding.addressable_devices_indices_map(fill.shape)
    shards = []
    for device, index in indices.items():
        parts = zip(index or (), fill.shape, strict=True)
        shape = tuple(len(range(*part.indices(size))) for part, size in parts)
        on_host = device.platform == "cpu"
        there: Any = jax.device_put(np.resize(pool, shape) if on_host else pool, device)
        shards.append(there if on_host else repeat_pool(there, shape))
    return jax.make_array_from_single_device_arrays(fill.shape, sharding, shards)


@functools.lru_cache(maxsize=64)
def _pool(fill: Fill) -> npt.NDArray[Any]:
    """Returns the values of a fill; a step has a thousand inputs, of a few kinds."""
    return fill.array(np.random.default_rng(SEED))


@functools.partial(jax.jit, static_argnums=1)
def repeat_pool(pool: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns what `np.resize(pool, shape)` does, made where the pool is, in no more memory than
    the result. No number here exceeds (POOL - 1) * POOL, which 32 bits hold."""
    place = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for dim in reversed(range(len(shape))):
        index = jax.lax.broadcasted_iota(jnp.uint32, shape, dim) % POOL
        place = (place + index * jnp.uint32(stride % POOL)) % POOL
        stride *= shape[dim]
    return pool.at[place].get(mode="promise_in_bounds")


def reason(error: Exception) -> str:
    """Returns an exception in one line, without what an allocator tells its own authors."""
    text = str(error).strip()
    line = text.splitlines()[0].strip() if text else type(error).__name__
    if isinstance(error, MemoryError) or _EXHAUSTED in text:
        return f"out of memory: {_BESIDE.sub('', line).rstrip('.')}"
    return line
