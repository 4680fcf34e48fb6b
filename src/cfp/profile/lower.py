"""A program with its layouts, as bytes that any process can compile and run.

PRNG keys cross the edge of a program as their bits: typed keys cannot be exported.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cfp.layouts import Constrain, Layouts, sharding
from cfp.segments.extract import Extract
from cfp.segments.fill import Fill, as_key, fill_of
from cfp.trace import is_key
from cfp.trace.evaluate import rebuild


def fills(cut: Extract) -> tuple[Fill, ...]:
    """How the program's arguments are filled."""
    return tuple(fill_of(cut.graph, value) for value in cut.graph.inputs)


def lower(cut: Extract, layouts: Layouts, mesh: Mesh) -> bytes:
    """The program as a serialised `jax.export.Exported` for the mesh."""
    graph = cut.graph
    touch = Constrain(mesh, layouts)

    def program(*flat: Any) -> tuple[Any, ...]:
        inputs = [as_key(graph, v, x) for v, x in zip(graph.inputs, flat, strict=True)]
        return tuple(
            jax.random.key_data(result) if is_key(result.dtype) else result
            for result in rebuild(graph, inputs, touch)
        )

    jitted: Any = jax.jit(
        program,
        in_shardings=tuple(sharding(mesh, layout) for layout in layouts.inputs),
        out_shardings=tuple(sharding(mesh, layout) for layout in layouts.outputs),
    )
    return export(jitted, fills(cut))


def export(jitted: Any, inputs: tuple[Fill, ...]) -> bytes:
    shape: Any = jax.ShapeDtypeStruct
    shapes = [shape(fill.shape, jnp.dtype(fill.dtype)) for fill in inputs]
    return bytes(jax.export.export(jitted)(*shapes).serialize())
