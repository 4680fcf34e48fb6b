"""Data parallel: the batch is split, parameters are whole, gradients are summed.

The batch is found, not named (`cfp.blocks.batch`), and every block takes the candidate that splits
it. In a step that accumulates gradients over micro-batches that is the rows of the micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cfp.analysis import Analysis
from cfp.blocks import Strategy
from cfp.blocks.follow_batch import follow_batch
from cfp.layouts import AnyMesh
from cfp.plan import Plan, build_plan
from cfp.plan.build import analyze_for


def data_parallel(
    step: Callable[..., Any], *args: Any, mesh: AnyMesh, pins: Mapping[str, Any] | None = None
) -> Plan:
    """Returns the plan that splits the batch over all axes of the mesh."""
    analysis = analyze_for(step, args, mesh)
    axes = tuple(range(len(mesh.axis_names)))
    strategies = batch_strategies(analysis, mesh, axes, "data_parallel")
    return build_plan(step, analysis, mesh, strategies, name="data_parallel", pins=pins)


def batch_strategies(
    analysis: Analysis, mesh: AnyMesh, axes: Sequence[int], who: str
) -> list[Strategy]:
    """Returns strategies that split the batch over some axes of the mesh and replicate over the
    others."""
    shape = mesh.axis_sizes
    parts = math.prod(shape[axis] for axis in axes)
    chosen: Sequence[int | None] = [None] * len(analysis.blocks)
    if parts > 1:
        chosen = follow_batch(analysis.graph, analysis.grouping, parts, who)
    return [
        tuple(candidate if axis in axes and shape[axis] > 1 else None for axis in range(len(shape)))
        for candidate in chosen
    ]
