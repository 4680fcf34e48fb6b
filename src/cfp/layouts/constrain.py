"""Layouts told to the compiler, on the way of the tensors through `rebuild`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from cfp.layouts.layout import Layout, Layouts, to_spec


def sharding(mesh: Mesh, layout: Layout) -> NamedSharding:
    return NamedSharding(mesh, to_spec(layout, mesh.axis_names))


@dataclass(frozen=True, slots=True)
class Constrain:
    """A `Touch` that constrains every tensor the layouts speak of."""

    mesh: Mesh
    layouts: Layouts

    def value(self, value: int, array: Any) -> Any:
        array = self._lie(array, self.layouts.sums.get(value))
        return self._lie(array, self.layouts.values.get(value))

    def operand(self, equation: int, operand: int, array: Any) -> Any:
        array = self._lie(array, self.layouts.via.get((equation, operand)))
        return self._lie(array, self.layouts.uses.get((equation, operand)))

    def once(self, equation: int, operand: int) -> int | None:
        return self.layouts.once.get((equation, operand))

    def _lie(self, array: Any, layout: Layout | None) -> Any:
        if layout is None:
            return array
        lie: Any = jax.lax.with_sharding_constraint
        return lie(array, sharding(self.mesh, layout))
