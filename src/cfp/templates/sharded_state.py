"""ZeRO-1 and FSDP: data parallel, with the training state split over the same devices.

fsdp    parameters lie split; they are gathered where they are used, and their gradients are
        summed into the same split. The optimizer state follows.
zero1   the optimizer state alone lies so; parameters stay whole and are gathered after the update.

A tensor is split in its largest dim that divides (the first of several), never in the dim a loop
runs over; where none divides it stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.layouts import Layout
from cfp.plan import Plan, auto_mesh, build_plan
from cfp.plan.build import analyze_for
from cfp.templates.data_parallel import batch_strategies
from cfp.trace import LOOP_SLICE, Graph, Role


def zero1(
    step: Callable[..., Any], *args: Any, mesh: Mesh, pins: Mapping[str, Any] | None = None
) -> Plan:
    """Data parallel with the optimizer state split."""
    return _plan(step, args, mesh, pins, "zero1")


def fsdp(
    step: Callable[..., Any], *args: Any, mesh: Mesh, pins: Mapping[str, Any] | None = None
) -> Plan:
    """Data parallel with parameters, gradients and optimizer state split."""
    return _plan(step, args, mesh, pins, "fsdp")


def _plan(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: Mesh,
    pins: Mapping[str, Any] | None,
    name: str,
) -> Plan:
    mesh = auto_mesh(mesh)
    analysis = analyze_for(step, args, mesh)
    axes = tuple(range(len(mesh.axis_names)))
    strategies = batch_strategies(analysis, mesh, axes, name)
    graph = analysis.graph
    split = {
        position: layout
        for position, value in enumerate(graph.inputs)
        if value in analysis.grouping.parameters
        and (layout := split_largest(graph, value, mesh.devices.shape)) is not None
    }
    plan = build_plan(step, analysis, mesh, strategies, name=name, held=split, pins=pins)
    if name == "fsdp":
        return plan
    assert plan.bound is not None
    state = {
        position: plan.bound.layouts.inputs[position] for position in state_arguments(analysis)
    }
    return build_plan(step, analysis, mesh, strategies, name=name, held=state, pins=pins)


def split_largest(graph: Graph, value: int, mesh_shape: tuple[int, ...]) -> Layout | None:
    """All axes on the largest dim that divides."""
    parts = math.prod(mesh_shape)
    looped = any(graph.equations[r].primitive == LOOP_SLICE for r in graph.readers[value])
    dims = [
        (size, -dim)
        for dim, size in enumerate(graph.values[value].shape)
        if size % parts == 0 and not (looped and dim == 0)
    ]
    if not dims:
        return None
    dim = -max(dims)[1]
    return tuple(dim if size > 1 else None for size in mesh_shape)


def state_arguments(analysis: Analysis) -> list[int]:
    """Positions of what only the update reads: optimizer state."""
    graph = analysis.graph
    return [
        position
        for position, value in enumerate(graph.inputs)
        if graph.values[value].shape
        and value not in analysis.grouping.parameters
        and graph.readers[value]
        and all(graph.equations[r].role is Role.UPDATE for r in graph.readers[value])
    ]
