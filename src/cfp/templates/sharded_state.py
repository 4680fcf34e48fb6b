"""ZeRO-1 and FSDP: data parallel, with the training state split over the same devices.

fsdp    parameters lie split; they are gathered where they are used, and their gradients are
        summed into the same split. The optimizer state follows.
zero1   the optimizer state alone lies so; parameters stay whole and are gathered after the update.

Which dim is split: `cfp.layouts.state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cfp.layouts import AnyMesh, whole
from cfp.layouts.state import State, split_state
from cfp.plan import Plan, build_plan
from cfp.plan.build import analyze_for
from cfp.templates.data_parallel import batch_strategies


def zero1(
    step: Callable[..., Any], *args: Any, mesh: AnyMesh, pins: Mapping[str, Any] | None = None
) -> Plan:
    """Returns the data parallel plan with the optimizer state split."""
    return _plan(step, args, mesh, pins, State.ZERO1)


def fsdp(
    step: Callable[..., Any], *args: Any, mesh: AnyMesh, pins: Mapping[str, Any] | None = None
) -> Plan:
    """Returns the data parallel plan with parameters, gradients and optimizer state split."""
    return _plan(step, args, mesh, pins, State.FSDP)


def _plan(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: AnyMesh,
    pins: Mapping[str, Any] | None,
    state: State,
) -> Plan:
    analysis = analyze_for(step, args, mesh)
    axes = tuple(range(len(mesh.axis_names)))
    strategies = batch_strategies(analysis, mesh, axes, state.value)
    graph, blocks, shape = analysis.graph, analysis.grouping, mesh.axis_sizes
    layouts = [whole(len(shape))] * len(graph.inputs)  # as data parallel leaves them
    split = split_state(graph, blocks, layouts, shape, state)
    return build_plan(step, analysis, mesh, strategies, name=state.value, held=split, pins=pins)
