"""Training state split further than its blocks ask, to save memory.

block   parameters, gradients and optimizer state lie as the blocks want the parameters
zero1   the optimizer state is split over the axes that leave it whole; parameters are gathered
        after the update
fsdp    parameters and gradients too: they are gathered where they are used

A tensor takes its free axes in its largest dim that still divides (the first of several), never in
the dim that a loop runs over; where none divides it stays as it is.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

from cfp.blocks import Blocks, Strategy
from cfp.layouts.layout import Layout, Layouts, Shape, local_shape
from cfp.layouts.propagate import propagate
from cfp.trace import LOOP_SLICE, Graph, Role


class State(enum.Enum):
    """How training state is split, besides what the blocks say."""

    BLOCK = "block"
    ZERO1 = "zero1"
    FSDP = "fsdp"


def propagate_state(
    graph: Graph,
    blocks: Blocks,
    strategies: Sequence[Strategy],
    state: State,
    *,
    held: Mapping[int, Layout] | None = None,
    feedback: Mapping[int, int] | None = None,
    wanted: Mapping[int, Layout] | None = None,
) -> Layouts:
    """Returns what `propagate` returns for the blocks' mesh, with training state split as `state`
    says."""
    mesh_shape = blocks.mesh_shape

    def lay(more: Mapping[int, Layout]) -> Layouts:
        fixed = {**more, **(held or {})}
        return propagate(
            graph,
            blocks,
            strategies,
            mesh_shape,
            held=fixed,
            feedback=feedback,
            wanted=wanted,
        )

    layouts = lay({})
    if state is State.BLOCK:
        return layouts
    return lay(split_state(graph, blocks, layouts.inputs, mesh_shape, state))


def split_state(
    graph: Graph, blocks: Blocks, layouts: Sequence[Layout], mesh_shape: Shape, state: State
) -> dict[int, Layout]:
    """Returns a dict: position of an argument that `state` splits further -> its layout then."""
    parameters = {i for i, value in enumerate(graph.inputs) if value in blocks.parameters}
    chosen = parameters if state is State.FSDP else set(state_arguments(graph, blocks))
    found = {
        position: split_further(graph, graph.inputs[position], layouts[position], mesh_shape)
        for position in sorted(chosen)
    }
    return {position: layout for position, layout in found.items() if layout is not None}


def split_further(graph: Graph, value: int, layout: Layout, mesh_shape: Shape) -> Layout | None:
    """Returns the layout with all axes that leave the tensor whole on its largest dim that they
    divide."""
    free = [axis for axis, dim in enumerate(layout) if dim is None and mesh_shape[axis] > 1]
    if not free:
        return None
    count = math.prod(mesh_shape[axis] for axis in free)
    looped = any(graph.equations[r].primitive == LOOP_SLICE for r in graph.readers[value])
    shape = local_shape(layout, graph.values[value].shape, mesh_shape)
    dims = [
        (size, -dim)
        for dim, size in enumerate(shape)
        if size % count == 0 and not (looped and dim == 0)
    ]
    if not dims:
        return None
    chosen = -max(dims)[1]
    return tuple(chosen if axis in free else dim for axis, dim in enumerate(layout))


def state_arguments(graph: Graph, blocks: Blocks) -> list[int]:
    """Returns the positions of what only the update reads: optimizer state."""
    return [
        position
        for position, value in enumerate(graph.inputs)
        if graph.values[value].shape
        and value not in blocks.parameters
        and graph.readers[value]
        and all(graph.equations[r].role is Role.UPDATE for r in graph.readers[value])
    ]
