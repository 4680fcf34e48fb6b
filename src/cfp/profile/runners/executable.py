"""What becomes of a job: a program to compile, an executable that was checked, and its inputs."""

from __future__ import annotations

import hashlib
import re
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
_NAMES = re.compile(
    r'jax\.result_info = "[^"]*"|@call_exported_\w+'
)  # names that do not change a program


@dataclass(frozen=True, slots=True)
class Executable:
    call: jax.stages.Compiled
    shardings: tuple[Sharding, ...]
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

    def program(*flat: Any) -> tuple[Any, ...]:
        arguments, named = jax.tree.unflatten(exported.in_tree, flat)
        return tuple(jax.tree.leaves(call(*arguments, **named)))

    wrapped = jax.jit(
        program,
        in_shardings=tuple(exported.in_shardings_jax(mesh)),
        out_shardings=tuple(exported.out_shardings_jax(mesh)),
        donate_argnums=tuple(sorted(job.feedback.values())),
    )
    lowered = wrapped.lower(*takes)
    # the text has shardings and donations, but no locations
    text = _NAMES.sub("", lowered.as_text()) + str(sorted(job.feedback.items()))
    return lowered, hashlib.sha256(text.encode()).hexdigest()


def executable_of(compiled: jax.stages.Compiled, job: Job, mesh: Mesh) -> Executable:
    """Raises if a result that is fed back has another sharding than its argument."""
    shardings = tuple(jax.tree.leaves(compiled.input_shardings))
    results = jax.tree.leaves(compiled.output_shardings)
    for result, argument in job.feedback.items():
        there, back = shardings[argument], results[result]
        if not back.is_equivalent_to(there, len(job.inputs[argument].shape)):
            raise ValueError(
                f"result {result} cannot be fed back as argument {argument}: "
                f"one is in {back}, the other in {there}"
            )
    return Executable(compiled, shardings, _needs(compiled), _collectives(compiled, mesh))


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
    """Returns an input, shard by shard: a host whose memory is not its devices' never has more than
    one."""
    pool = replace(fill, shape=(POOL,)).array(np.random.default_rng(SEED))
    device: Any = next(iter(sharding.device_set))
    made: dict[tuple[int, ...], npt.NDArray[Any]] = {}  # shards are mostly of one shape

    def shard(index: tuple[slice, ...] | None) -> npt.NDArray[Any]:
        parts = zip(index or (), fill.shape, strict=True)
        shape = tuple(len(range(*part.indices(size))) for part, size in parts)
        if shape not in made:
            made[shape] = np.resize(pool, shape)
        return made[shape].copy() if device.platform == "cpu" else made[shape]

    return jax.make_array_from_callback(fill.shape, sharding, shard)


def reason(error: Exception) -> str:
    """Returns an exception in one line."""
    text = str(error).strip()
    line = text.splitlines()[0].strip() if text else type(error).__name__
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return f"out of memory: {line}"
    return line
