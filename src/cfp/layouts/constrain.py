"""Layouts told to the compiler, on the way of the tensors through `rebuild`.

What is computed again stands behind a fence (`Constrain.fence`): an optimization barrier, as
`jax.checkpoint` has it. XLA's compiler for CPUs takes barriers away before it merges equal
operations and orders them: it undoes `jax.checkpoint` outside of loops. There every activation
behind the fence is selected, by a condition that follows from the incoming cotangent, is always
true, and is more than the compiler can see: nothing can be merged with what does not depend on the
cotangent, nor run before it. A parameter is selected only if it is gathered where it is read, so
that what was gathered is not kept either: the others would be copied for nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from cfp.errors import CfpError
from cfp.layouts.layout import Layout, Layouts, to_spec, whole
from cfp.trace import is_key
from cfp.trace.recomputation import Held, Operand

AnyMesh = Mesh | AbstractMesh  # the second has no devices: some local device stands in for them


def auto_mesh(mesh: AnyMesh) -> AnyMesh:
    """Returns the same devices and names with every axis left to the compiler, as constraints need
    it."""
    if isinstance(mesh, AbstractMesh):
        auto = (AxisType.Auto,) * len(mesh.axis_names)
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=auto)
    if not isinstance(mesh, Mesh):
        raise CfpError(
            f"`mesh` is a {type(mesh).__name__}: give a jax.sharding.Mesh, as "
            "jax.make_mesh((2, 4), ('data', 'model'))."
        )
    return Mesh(mesh.devices, mesh.axis_names)


def real_mesh(mesh: AnyMesh, what: str) -> Mesh:
    """Returns the mesh, which must have devices: `what` needs them."""
    if isinstance(mesh, Mesh):
        return mesh
    raise CfpError(
        f"`{what}` needs the devices of the mesh, and this plan is for a mesh that is not there: "
        "save it, and load it where they are with cfp.load(path, mesh=...)."
    )


def sharding(mesh: AnyMesh, layout: Layout) -> NamedSharding:
    return NamedSharding(mesh, to_spec(layout, mesh.axis_names))


@dataclass(frozen=True, slots=True)
class Constrain:
    """A `Touch` that constrains every tensor the layouts speak of."""

    mesh: AnyMesh
    layouts: Layouts
    platform: str | None = None  # of the devices, where the mesh has none

    def value(self, value: int, array: Any) -> Any:
        array = self._lie(array, self.layouts.sums.get(value))
        return self._lie(array, self.layouts.values.get(value))

    def operand(self, equation: int, operand: int, array: Any) -> Any:
        array = self._lie(array, self.layouts.via.get((equation, operand)))
        return self._lie(array, self.layouts.uses.get((equation, operand)))

    def entry(self, equation: int, operand: int) -> int | None:
        found = self.layouts.entries.get((equation, operand))
        return None if found is None else found.number

    def enter(self, equation: int, operand: int, array: Any) -> Any:
        found = self.layouts.entries[equation, operand]
        return self._lie(self._lie(array, found.via), found.layout)

    def fence(
        self,
        held: Sequence[tuple[Held, Any]],
        after: tuple[Operand, int, Any] | None,
        handed_on: Sequence[tuple[int, Any]],
    ) -> list[Any]:
        barrier: Any = jax.lax.optimization_barrier
        arrays = [array for _, array in held]
        if after is None:
            return list(barrier(arrays))
        operand, value, cotangent = after
        before = [array for _, array in handed_on]
        fenced: list[Any] = list(barrier([*arrays, cotangent, *before]))
        if not self._on_cpu:
            return fenced[: len(arrays)]
        entry = self.layouts.entries.get(operand)
        lies = [self._known(value) if entry is None else entry.layout]
        lies += [self._known(one) for one, _ in handed_on]
        there = functools.reduce(jnp.logical_and, map(self._is_there, fenced[len(arrays) :], lies))
        return [
            array if one.parameter and not self._gathered(one) else _select(there, array)
            for (one, _), array in zip(held, fenced, strict=False)
        ]

    def _known(self, value: int) -> Layout:
        return self.layouts.known.get(value, whole(len(self.mesh.axis_names)))

    @property
    def _on_cpu(self) -> bool:
        if isinstance(self.mesh, AbstractMesh):
            return self.platform == "cpu"
        return bool(self.mesh.devices.flat[0].platform == "cpu")

    def _gathered(self, one: Held) -> bool:
        """Returns whether a tensor is read otherwise than it lies."""
        read = self.layouts.uses.get(one.operand)
        return read is not None and read != self.layouts.known.get(one.value)

    def _is_there(self, array: Any, layout: Layout) -> Any:
        """Returns a scalar that is true once the array is there; every device looks at its own part
        of it, so nothing is sent."""

        def look(part: Any) -> Any:
            first = jnp.real(part.ravel()[0]).astype(jnp.int32)
            return (first | 1) != 0

        spec = to_spec(layout, self.mesh.axis_names)
        whole_spec = to_spec(whole(len(layout)), self.mesh.axis_names)
        local: Any = jax.shard_map
        look_local = local(
            look, mesh=self.mesh, in_specs=spec, out_specs=whole_spec, check_vma=False
        )
        return look_local(array)

    def _lie(self, array: Any, layout: Layout | None) -> Any:
        if layout is None:
            return array
        lie: Any = jax.lax.with_sharding_constraint
        return lie(array, sharding(self.mesh, layout))


def _select(there: Any, array: Any) -> Any:
    """Returns the array, if `there` is true."""
    if is_key(array.dtype):
        bits = jax.random.key_data(array)
        return jax.random.wrap_key_data(_select(there, bits), impl=jax.random.key_impl(array))
    return jnp.where(there, array, jnp.zeros_like(array))
