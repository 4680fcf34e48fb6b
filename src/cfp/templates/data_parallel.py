"""Data parallel: the batch is split, parameters are whole, gradients are summed.

The batch is found, not named: an argument that is neither a parameter nor optimizer state nor a
key is data. Its batch dim is the first that some contraction keeps and that divides; from there
the split is followed through the step, and every block takes the candidate that keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.blocks import Block, Kind, Strategy
from cfp.errors import CfpError
from cfp.layouts.carry import splits
from cfp.plan import Plan, auto_mesh, build_plan
from cfp.plan.build import analyze_for
from cfp.templates.walk import Decide, split_of, walk
from cfp.trace import Equation, Role


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
    parts = int(np.prod([shape[axis] for axis in axes]))
    chosen = follow_batch(analysis, parts, who) if parts > 1 else [None] * len(analysis.blocks)
    return [
        tuple(candidate if axis in axes and shape[axis] > 1 else None for axis in range(len(shape)))
        for candidate in chosen
    ]


def follow_batch(analysis: Analysis, parts: int, who: str) -> list[int | None]:
    """Per block the candidate that keeps the batch split into `parts`; None: it has no batch."""
    data = data_arguments(analysis)
    best: list[int | None] = []
    start: dict[int, int] = {}
    for value in data:  # an argument at a time: each has its own batch dim
        for dim, size in enumerate(analysis.graph.values[value].shape):
            if size % parts:
                continue
            found = walk(analysis, parts, {value: dim}, keep_split(parts))
            if any(candidate is not None for candidate in found):
                start[value] = dim
                break
    if start:
        best = walk(analysis, parts, start, keep_split(parts))
    if not start or all(candidate is None for candidate in best):
        sizes = [
            f"`{path}` {list(analysis.graph.values[value].shape)}"
            for path, value in zip(analysis.graph.input_paths, analysis.graph.inputs, strict=True)
            if value in data
        ]
        raise CfpError(
            f"{who} splits the batch into {parts} parts, and no dim of the step's data divides by "
            f"that: {', '.join(sizes[:3]) or 'it takes none'}. Use a mesh that divides the batch."
        )
    return best


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
