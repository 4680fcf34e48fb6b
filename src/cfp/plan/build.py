"""Plans made: from one strategy per block, from choices per segment, from explicit layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from cfp.analysis import Analysis, analyze
from cfp.blocks import Strategy
from cfp.blocks.feedback import find_feedback
from cfp.errors import CfpError
from cfp.layouts import AnyMesh, Layout, Layouts, auto_mesh, propagate
from cfp.layouts.state import State
from cfp.plan.bound import Bound
from cfp.plan.choice import choices
from cfp.plan.environment import Environment
from cfp.plan.pins import resolve_pins
from cfp.plan.plan import Plan, PlannedValue
from cfp.plan.tensor import planned_tensors
from cfp.segments.keep import Keep
from cfp.trace.paths import argument_names

# what a segment's option says: its strategies, one per block, its state, and what it keeps
Chosen = tuple[tuple[Strategy, ...], State, Keep]


def analyze_for(
    step: Callable[..., Any], args: tuple[Any, ...], mesh: AnyMesh, *, sequence: bool = False
) -> Analysis:
    return analyze(step, *args, mesh_shape=auto_mesh(mesh).axis_sizes, sequence=sequence)


def build_plan(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: AnyMesh,
    strategies: Sequence[Strategy],
    *,
    name: str,
    held: Mapping[int, Layout] | None = None,
    pins: Mapping[str, Any] | None = None,
) -> Plan:
    """Returns the plan that one strategy per block makes, laid out as a whole.

    `held` fixes how arguments lie (by position), `pins` by path pattern; pins come first.
    """
    _check(analysis, mesh, strategies)
    fixed = {**(held or {}), **resolve_pins(analysis.graph, mesh, pins or {})}
    layouts = propagate(
        analysis.graph,
        analysis.grouping,
        strategies,
        mesh.axis_sizes,
        held=fixed,
        feedback=find_feedback(analysis.graph, analysis.grouping.parameters),
    )
    plan = _plan(step, analysis, mesh, layouts, name=name, held=tuple(fixed))
    segments = choices(analysis, strategies, [(None, Keep.AS_WRITTEN)] * len(analysis.segments))
    return replace(plan, segments=segments, notes=analysis.notes)


def plan_of_choices(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: AnyMesh,
    layouts: Layouts,
    chosen: Sequence[Chosen],
    *,
    name: str,
    held: Sequence[int],
) -> Plan:
    """Returns the plan whose segments lie as was chosen for each, which makes these layouts.
    `held` are the positions of arguments that a pin fixes."""
    strategies: list[Strategy] = [()] * len(analysis.blocks)
    for segment, (some, *_) in zip(analysis.segments, chosen, strict=True):
        for block, strategy in zip(segment.blocks, some, strict=True):
            strategies[block] = strategy
    plan = _plan(step, analysis, mesh, layouts, name=name, held=held)
    segments = choices(analysis, strategies, [(state, keep) for _, state, keep in chosen])
    return replace(plan, segments=segments, notes=analysis.notes)


def plan_of_layouts(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: AnyMesh,
    layouts: Layouts,
    *,
    name: str,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Returns a plan that fixes tensors one by one."""
    plan = _plan(step, analysis, mesh, layouts, name=name, held=())
    graph = analysis.graph
    fixed: list[PlannedValue] = []
    for value, layout in sorted(layouts.values.items()):
        producer = graph.values[value].producer
        if producer is not None:
            at, shape = graph.equations[producer].outputs.index(value), graph.values[value].shape
            primitive = graph.equations[producer].primitive
            fixed.append(PlannedValue(producer, primitive, at, None, shape, layout))
    for (equation, operand), layout in sorted(layouts.uses.items()):
        reader = graph.equations[equation]
        shape = reader.op.in_shapes[operand]
        fixed.append(PlannedValue(equation, reader.primitive, None, operand, shape, layout))
    return replace(plan, values=tuple(fixed), notes=(*analysis.notes, *notes))


def _plan(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: AnyMesh,
    layouts: Layouts,
    *,
    name: str,
    held: Sequence[int],
) -> Plan:
    graph = analysis.graph
    return Plan(
        name=name,
        mesh=mesh,
        argument_names=tuple(argument_names(step, len(graph.in_tree.children()))),
        arguments=planned_tensors(graph, graph.inputs, graph.input_paths, layouts.inputs, held),
        results=planned_tensors(graph, graph.outputs, graph.output_paths, layouts.outputs),
        segments=(),
        values=(),
        sequence=analysis.sequence,
        environment=Environment.of(mesh),
        bound=bound_to(step, analysis, layouts),
    )


def bound_to(step: Callable[..., Any], analysis: Analysis, layouts: Layouts) -> Bound:
    """Returns what a plan needs to run its step."""
    graph = analysis.graph
    shape: Any = jax.ShapeDtypeStruct
    shapes = [shape(graph.values[v].shape, graph.values[v].dtype) for v in graph.inputs]
    args = jax.tree.unflatten(graph.in_tree, shapes)
    return Bound(step, args, analysis, layouts)


def _check(analysis: Analysis, mesh: AnyMesh, strategies: Sequence[Strategy]) -> None:
    """Checks that the sizes of the mesh divide the strategies: otherwise it is the caller's
    mistake."""
    shape = mesh.axis_sizes
    if len(strategies) != len(analysis.blocks):
        raise CfpError(f"{len(strategies)} strategies for {len(analysis.blocks)} blocks.")
    for block, strategy in zip(analysis.blocks, strategies, strict=True):
        counts: dict[int, int] = {}
        for candidate, size in zip(strategy, shape, strict=True):
            if candidate is not None:
                counts[candidate] = counts.get(candidate, 1) * size
        for candidate, count in counts.items():
            chosen = block.candidates[candidate]
            if not chosen.allows(count):
                raise CfpError(
                    f"Block {block.index} cannot split `{chosen.name}` into {count} parts: its "
                    f"{chosen.extent} does not divide."
                )
