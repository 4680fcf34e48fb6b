"""Layouts told to the compiler, on the way of the tensors through `rebuild`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from cfp.errors import CfpError
from cfp.layouts.layout import Layout, Layouts, to_spec

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

    def _lie(self, array: Any, layout: Layout | None) -> Any:
        if layout is None:
            return array
        lie: Any = jax.lax.with_sharding_constraint
        return lie(array, sharding(self.mesh, layout))
