"""A plan together with the step it is for: all that is needed to rebuild the step sharded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import AxisType

from cfp.analysis import Analysis
from cfp.errors import CfpError
from cfp.layouts import AnyMesh, Constrain, Layout, Layouts, auto_mesh, sharding
from cfp.trace.callbacks import Debug
from cfp.trace.calling import Calling
from cfp.trace.evaluate import rebuild


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """`args` are shapes, not arrays: a plan holds no data. Printed, it names the step alone."""

    step: Callable[..., Any]
    args: tuple[Any, ...] = field(repr=False)
    analysis: Analysis = field(repr=False)
    layouts: Layouts = field(repr=False)
    compiled: dict[str, Any] = field(default_factory=dict, repr=False)  # made on demand, once

    @property
    def calling(self) -> Calling:
        """Returns how the user's arguments become `args`."""
        return self.analysis.graph.calling


def jit_bound(bound: Bound, mesh: AnyMesh, donate_argnums: Sequence[int] | None) -> Any:
    """Returns the step, as a function of arrays, as a `jax.jit` with the plan's shardings and
    constraints.

    What the step prints to debug, it prints under the plan, on several devices in any order.
    Arguments and results are on the user's mesh. Where that has Explicit axes, they are left to
    the compiler inside, for the constraints to speak to.
    """
    graph, layouts = bound.analysis.graph, bound.layouts
    leaves = jax.tree.leaves(bound.args)
    in_tree: Any = graph.in_tree
    expected = [(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    touch = Constrain(auto_mesh(mesh), layouts)
    results = shardings(mesh, layouts.outputs, graph.out_tree)
    debug: Debug = "kept" if mesh.size == 1 else "unordered"

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
        made = rebuild(graph, flat, touch, debug, layouts.again)
        return jax.tree.unflatten(graph.out_tree, made)

    planned.__name__ = getattr(bound.step, "__name__", "step")
    if donate_argnums is None:
        donate_argnums = donated_arguments(bound)
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    fixed = tuple(name for name, kind in kinds if kind is not AxisType.Auto)
    inside: Any = jax.sharding.auto_axes
    return jax.jit(
        inside(planned, axes=fixed, out_sharding=results) if fixed else planned,
        in_shardings=shardings(mesh, layouts.inputs, in_tree),
        out_shardings=results,
        donate_argnums=tuple(donate_argnums),
    )


def shardings(mesh: AnyMesh, layouts: Sequence[Layout], tree: Any) -> Any:
    return jax.tree.unflatten(tree, [sharding(mesh, layout) for layout in layouts])


def donated_arguments(bound: Bound) -> tuple[int, ...]:
    """Returns the arguments that the step itself donates, being jitted with `donate_argnums`."""
    donated = bound.analysis.graph.donated
    numbers: list[int] = []
    position = 0
    for number, arg in enumerate(bound.args):
        count = len(jax.tree.leaves(arg))
        if count and all(p in donated for p in range(position, position + count)):
            numbers.append(number)
        position += count
    return tuple(numbers)
