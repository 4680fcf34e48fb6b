"""A program with its layouts, as bytes that any process can compile and run.

PRNG keys cross the edge of a program as their bits: typed keys cannot be exported. Nor can
callbacks to the host: what is for debugging is left out, and a step that needs others is refused.

One iteration of a loop is lowered as a loop of a few (`Extract.iterations`), as in the step:
what the step carries from one iteration to the next is carried, what is the same in all of them
stays outside, and all else comes and goes as slices of stacked tensors. Where a carried tensor
leaves otherwise than it enters it is not carried: that resharding is a crossing of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from cfp.errors import CfpError
from cfp.layouts import AnyMesh, Constrain, Layout, Layouts, sharding
from cfp.profile.programs.kinds import shift_dims
from cfp.segments.extract import Extract
from cfp.segments.fill import Fill, as_key, fills_of
from cfp.trace import Graph, is_key, source_line
from cfp.trace.callbacks import needed_callbacks
from cfp.trace.evaluate import rebuild


def check_callbacks(graph: Graph) -> None:
    """Raises where the step calls back to the host for what it computes."""
    found = next(needed_callbacks(graph), None)
    if found is not None:
        raise CfpError(
            f"The step calls back to the host (`{found.primitive}` at {source_line(found)}), and "
            "programs that do cannot be measured in another process. Compute it in JAX, or outside "
            "the step, and pass what it gives; the plans of `cfp.templates` run such steps as they "
            "are."
        )


def fills(extract: Extract, layouts: Layouts) -> tuple[Fill, ...]:
    """Returns how the arguments of the program that `lower` makes are filled."""
    stacked = sliced(extract, layouts)
    return tuple(
        replace(fill, shape=(extract.iterations, *fill.shape)) if i in stacked else fill
        for i, fill in enumerate(fills_of(extract.graph, extract.graph.inputs))
    )


def carried(extract: Extract, layouts: Layouts) -> dict[int, int]:
    """Returns the arguments that the measured loop carries, with the results that replace them."""
    if extract.iteration is None:
        return {}
    return {
        argument: result
        for argument, result in extract.iteration.carries.items()
        if layouts.inputs[argument] == layouts.outputs[result]
    }


def sliced(extract: Extract, layouts: Layouts) -> frozenset[int]:
    """Returns the arguments that the measured loop reads a slice of in every iteration."""
    if extract.iteration is None:
        return frozenset()
    others = extract.iteration.carries.keys() - carried(extract, layouts).keys()
    return extract.iteration.varies | others


def lower(extract: Extract, layouts: Layouts, mesh: AnyMesh, platform: str | None = None) -> bytes:
    """Returns the program as a serialised `jax.export.Exported` for the mesh, and for a `platform`
    where that is not JAX's own."""
    graph = extract.graph
    touch = Constrain(mesh, layouts, platform)

    def program(*flat: Any) -> tuple[Any, ...]:
        inputs = [as_key(graph, v, x) for v, x in zip(graph.inputs, flat, strict=True)]
        return tuple(
            jax.random.key_data(result) if is_key(result.dtype) else result
            for result in rebuild(graph, inputs, touch, "left out", layouts.again)
        )

    inputs, outputs = list(layouts.inputs), list(layouts.outputs)
    if extract.iteration is not None:
        for i in sliced(extract, layouts):
            inputs[i] = shift_dims(inputs[i], 1)
        for i in range(len(outputs)):
            if i not in carried(extract, layouts).values():
                outputs[i] = shift_dims(outputs[i], 1)
    jitted: Any = jax.jit(
        program if extract.iteration is None else _looped(program, extract, layouts, mesh),
        in_shardings=tuple(sharding(mesh, layout) for layout in inputs),
        out_shardings=tuple(sharding(mesh, layout) for layout in outputs),
    )
    return export(jitted, fills(extract, layouts), platform)


def _looped(
    program: Callable[..., tuple[Any, ...]], extract: Extract, layouts: Layouts, mesh: AnyMesh
) -> Callable[..., tuple[Any, ...]]:
    """Returns the loop of `extract.iterations` iterations of the program."""
    carries, slices = carried(extract, layouts), sorted(sliced(extract, layouts))
    count = len(layouts.outputs)
    stacked = [i for i in range(count) if i not in carries.values()]

    def lie(arrays: Mapping[int, Any], which: tuple[Layout, ...]) -> dict[int, Any]:
        constrain: Any = jax.lax.with_sharding_constraint
        return {i: constrain(x, sharding(mesh, which[i])) for i, x in arrays.items()}

    def loop(*flat: Any) -> tuple[Any, ...]:
        def turn(carry: Any, parts: Any) -> tuple[Any, Any]:
            given = dict(enumerate(flat))
            own = dict(zip((*carries, *slices), (*carry, *parts), strict=True))
            results = program(*(given | lie(own, layouts.inputs)).values())
            made = lie(dict(enumerate(results)), layouts.outputs)
            return tuple(made[i] for i in carries.values()), tuple(made[i] for i in stacked)

        first = tuple(flat[i] for i in carries), tuple(flat[i] for i in slices)
        last, stacks = jax.lax.scan(turn, *first, length=extract.iterations)
        found = dict(zip((*carries.values(), *stacked), (*last, *stacks), strict=True))
        return tuple(found[i] for i in range(count))

    return loop


def export(jitted: Any, inputs: tuple[Fill, ...], platform: str | None = None) -> bytes:
    shape: Any = jax.ShapeDtypeStruct
    shapes = [shape(fill.shape, jnp.dtype(fill.dtype)) for fill in inputs]
    platforms = None if platform is None else [platform]
    return bytes(jax.export.export(jitted, platforms=platforms)(*shapes).serialize())
