"""A plan together with the step it is for: all that is needed to rebuild the step sharded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.errors import CfpError
from cfp.layouts import Constrain, Layout, Layouts, sharding
from cfp.trace.evaluate import rebuild


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """`args` are shapes, not arrays: a plan holds no data."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    analysis: Analysis
    layouts: Layouts
    compiled: dict[str, Any] = field(default_factory=dict)  # made on demand, once


def jit_bound(bound: Bound, mesh: Mesh, donate_argnums: Sequence[int] | None) -> Any:
    """The step as a `jax.jit` with the plan's shardings and constraints."""
    graph, layouts = bound.analysis.graph, bound.layouts
    leaves = jax.tree.leaves(bound.args)
    in_tree: Any = graph.in_tree
    expected = [(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    touch = Constrain(mesh, layouts)

    def planned(*args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)
        if tree != in_tree:
            raise CfpError(f"The plan is for arguments of structure {in_tree}, not {tree}.")
        for path, (shape, dtype), leaf in zip(graph.input_paths, expected, flat, strict=True):
            if (leaf.shape, leaf.dtype) != (shape, dtype):
                raise CfpError(
                    f"`{path}` is {leaf.dtype}{list(leaf.shape)}; the plan is for "
                    f"{dtype}{list(shape)}. Plan the step again for these arguments."
                )
        return jax.tree.unflatten(graph.out_tree, rebuild(graph, flat, touch))

    planned.__name__ = getattr(bound.step, "__name__", "step")
    if donate_argnums is None:
        donate_argnums = donated_arguments(bound)
    return jax.jit(
        planned,
        in_shardings=shardings(mesh, layouts.inputs, in_tree),
        out_shardings=shardings(mesh, layouts.outputs, graph.out_tree),
        donate_argnums=tuple(donate_argnums),
    )


def shardings(mesh: Mesh, layouts: Sequence[Layout], tree: Any) -> Any:
    return jax.tree.unflatten(tree, [sharding(mesh, layout) for layout in layouts])


def donated_arguments(bound: Bound) -> tuple[int, ...]:
    """The arguments that the step itself donates, being jitted with `donate_argnums`."""
    donated = bound.analysis.graph.donated
    numbers: list[int] = []
    position = 0
    for number, arg in enumerate(bound.args):
        count = len(jax.tree.leaves(arg))
        if count and all(p in donated for p in range(position, position + count)):
            numbers.append(number)
        position += count
    return tuple(numbers)
