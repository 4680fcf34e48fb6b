"""Data parallel: the batch is split, parameters are whole, gradients are summed.

The batch is found, not named: an argument that is neither a parameter nor optimizer state nor a
key is data. Its batch dim is the first that no loop runs over, and the batch is the size that most
of the data have there. From them the split is followed through the step, and every block takes the
candidate that keeps it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.blocks import Block, Kind, Strategy
from cfp.errors import CfpError
from cfp.layouts.carry import splits
from cfp.plan import Plan, auto_mesh, build_plan
from cfp.plan.build import analyze_for
from cfp.templates.walk import Decide, split_of, walk
from cfp.trace import LOOP_SLICE, Equation, Graph, Role


def data_parallel(
    step: Callable[..., Any], *args: Any, mesh: Mesh, pins: Mapping[str, Any] | None = None
) -> Plan:
    """The batch over all axes of the mesh."""
    mesh = auto_mesh(mesh)
    analysis = analyze_for(step, args, mesh)
    axes = tuple(range(len(mesh.axis_names)))
    strategies = batch_strategies(analysis, mesh, axes, "data_parallel")
    return build_plan(step, analysis, mesh, strategies, name="data_parallel", pins=pins)


def batch_strategies(
    analysis: Analysis, mesh: Mesh, axes: Sequence[int], who: str
) -> list[Strategy]:
    """The batch over some axes of the mesh, everything replicated over the others."""
    shape = mesh.devices.shape
    parts = math.prod(shape[axis] for axis in axes)
    chosen = follow_batch(analysis, parts, who) if parts > 1 else [None] * len(analysis.blocks)
    return [
        tuple(candidate if axis in axes and shape[axis] > 1 else None for axis in range(len(shape)))
        for candidate in chosen
    ]


def follow_batch(analysis: Analysis, parts: int, who: str) -> list[int | None]:
    """Per block the candidate that keeps the batch split into `parts`; None: it has no batch."""
    graph = analysis.graph
    start: dict[int, int] = {}
    weight: Counter[int] = Counter()  # size -> elements of the data that have it
    for value in data_arguments(analysis):
        dim = batch_dim(graph, value)
        if dim is not None:
            start[value] = dim
            weight[graph.values[value].shape[dim]] += math.prod(graph.values[value].shape)
    batch = max(weight, key=lambda size: weight[size], default=0)
    start = {v: dim for v, dim in start.items() if graph.values[v].shape[dim] == batch}
    found: list[int | None] = []
    if start and batch % parts == 0:
        found = walk(analysis, parts, start, keep_split(parts))
    if not any(candidate is not None for candidate in found):
        shown = [
            f"`{path}` {list(graph.values[value].shape)}"
            for path, value in zip(graph.input_paths, graph.inputs, strict=True)
            if value in start
        ]
        raise CfpError(
            f"{who} splits the batch into {parts} parts, and that of this step does not divide: "
            f"{', '.join(shown[:3]) or 'it takes no data'}. Use a mesh that divides the batch."
        )
    return found


def batch_dim(graph: Graph, value: int) -> int | None:
    """The first dim that no loop runs over; None where loops run over all."""
    dim = 0
    while sliced := [
        graph.equations[reader]
        for reader in graph.readers[value]
        if graph.equations[reader].primitive == LOOP_SLICE
    ]:
        dim += 1
        value = sliced[0].outputs[0]
    return dim if graph.values[value].shape else None


def keep_split(parts: int) -> Decide:
    """Decides for the candidate that reads most operands as they come and sums nothing."""

    def decide(block: Block, seed: Equation, reads: Sequence[int | None]) -> int | None:
        best, most = None, 0
        for index, candidate in enumerate(block.candidates):
            if candidate.kind is Kind.CONTRACTED or not candidate.allows(parts):
                continue
            split = split_of(block, index, seed)
            if split is None:
                continue
            dims = split.operand_dims
            agree = sum(splits(r) and r == d for r, d in zip(reads, dims, strict=True))
            if agree > most:
                best, most = index, agree
        return best

    return decide


def data_arguments(analysis: Analysis) -> list[int]:
    """Arguments that the forward pass reads and the update does not rewrite, keys aside."""
    graph = analysis.graph
    return [
        value
        for value in graph.inputs
        if value not in analysis.grouping.parameters
        and graph.values[value].shape
        and "key<" not in str(graph.values[value].dtype)
        and any(graph.equations[r].role is not Role.UPDATE for r in graph.readers[value])
    ]
