"""Plans made: from one strategy per block, from explicit layouts, and from a file's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from cfp.analysis import Analysis, analyze
from cfp.blocks import Strategy
from cfp.blocks.pairs import find_pairs
from cfp.errors import CfpError
from cfp.layouts import Entries, Layout, Layouts, propagate
from cfp.plan.bound import Bound
from cfp.plan.choice import choices, strategies_of
from cfp.plan.environment import Environment
from cfp.plan.pins import resolve_pins
from cfp.plan.plan import Plan, PlannedValue
from cfp.plan.tensor import difference, planned_tensors
from cfp.trace import Graph
from cfp.trace.paths import argument_names


def auto_mesh(mesh: Mesh) -> Mesh:
    """The same devices and names with every axis left to the compiler, as constraints need it."""
    if not isinstance(mesh, Mesh):
        raise CfpError(
            f"`mesh` is a {type(mesh).__name__}: give a jax.sharding.Mesh, as "
            "jax.make_mesh((2, 4), ('data', 'model'))."
        )
    return Mesh(mesh.devices, mesh.axis_names)


def analyze_for(
    step: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh, *, sequence: bool = False
) -> Analysis:
    return analyze(step, *args, mesh_shape=mesh.devices.shape, sequence=sequence)


def build_plan(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: Mesh,
    strategies: Sequence[Strategy],
    *,
    name: str,
    held: Mapping[int, Layout] | None = None,
    entries: Entries | None = None,
    pins: Mapping[str, Any] | None = None,
    sequence: bool = False,
) -> Plan:
    """The plan that one strategy per block makes.

    `held` fixes how arguments lie (by position), `pins` by path pattern; pins come first. `entries`
    as of `propagate`; the plan keeps a few that say the same, where they do.
    """
    mesh = auto_mesh(mesh)
    _check(analysis, mesh, strategies)
    pinned = resolve_pins(analysis.graph, mesh, pins or {})
    fixed = {**(held or {}), **pinned}
    pairs = find_pairs(analysis.graph, analysis.grouping.parameters)
    graph = analysis.graph

    def lay(entries: Entries) -> Layouts:
        return propagate(
            graph,
            analysis.grouping,
            strategies,
            mesh.devices.shape,
            held=fixed,
            pairs=pairs,
            entries=entries,
        )

    kept = entries or {}
    layouts = lay(kept)
    differ = {
        (equation, operand): layout
        for (equation, operand), layout in kept.items()
        if layouts.known[graph.equations[equation].inputs[operand]] != layout
    }
    if differ != kept and lay(differ) == layouts:
        kept = differ
    plan = _plan(step, analysis, mesh, layouts, name=name, held=fixed, sequence=sequence)
    return replace(plan, segments=choices(analysis, strategies), entries=_operands(graph, kept))


def plan_of_layouts(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: Mesh,
    layouts: Layouts,
    *,
    name: str,
    notes: tuple[str, ...] = (),
) -> Plan:
    """A plan that fixes tensors one by one."""
    plan = _plan(step, analysis, auto_mesh(mesh), layouts, name=name, held={}, sequence=False)
    graph = analysis.graph
    fixed: list[PlannedValue] = []
    for value, layout in sorted(layouts.values.items()):
        producer = graph.values[value].producer
        if producer is not None:
            at, shape = graph.equations[producer].outputs.index(value), graph.values[value].shape
            primitive = graph.equations[producer].primitive
            fixed.append(PlannedValue(producer, primitive, at, None, shape, layout))
    fixed += _operands(graph, layouts.uses)
    return replace(plan, values=tuple(fixed), notes=notes)


def _operands(graph: Graph, layouts: Entries) -> tuple[PlannedValue, ...]:
    return tuple(
        PlannedValue(
            equation,
            graph.equations[equation].primitive,
            None,
            operand,
            graph.equations[equation].op.in_shapes[operand],
            layout,
        )
        for (equation, operand), layout in sorted(layouts.items())
    )


def bind_plan(plan: Plan, step: Callable[..., Any], args: tuple[Any, ...]) -> Plan:
    """The plan with its step, which must have the arguments and segments the plan is for."""
    if plan.bound is not None and plan.bound.step is step and _same(plan.bound.args, args):
        return plan
    analysis = analyze_for(step, args, plan.mesh, sequence=plan.sequence)
    graph = analysis.graph
    found = planned_tensors(graph, graph.inputs, graph.input_paths, [(None,)] * len(graph.inputs))
    differs = difference(plan.arguments, found)
    if differs:
        raise CfpError(f"The plan is for another step: {differs}.")
    wanted = {tensor.path: tensor.layout for tensor in plan.arguments}
    if plan.values:
        layouts = _explicit(plan, analysis)
        bound = _bound(step, analysis, layouts)
        return replace(plan, bound=bound)
    strategies = strategies_of(analysis, plan.segments)
    fixed = {tensor.path for tensor in plan.arguments if tensor.held}
    held = {i: wanted[path] for i, path in enumerate(graph.input_paths) if path in fixed}
    _, entries = _tensors(plan.entries, graph)

    def build(held: Mapping[int, Layout]) -> Plan:
        return build_plan(
            step,
            analysis,
            plan.mesh,
            strategies,
            name=plan.name,
            held=held,
            entries=entries,
            sequence=plan.sequence,
        )

    made = build(held)
    changed = {
        position: wanted[tensor.path]
        for position, tensor in enumerate(made.arguments)
        if tensor.layout != wanted[tensor.path]
    }
    if changed:  # a spec edited by hand counts
        made = build({**held, **changed})
    return replace(
        made,
        notes=plan.notes,
        predicted=plan.predicted,
        evidence=plan.evidence,
        environment=plan.environment,
    )


def _plan(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: Mesh,
    layouts: Layouts,
    *,
    name: str,
    held: Mapping[int, Layout],
    sequence: bool,
) -> Plan:
    graph = analysis.graph
    return Plan(
        name=name,
        mesh=mesh,
        argument_names=tuple(argument_names(step, len(graph.in_tree.children()))),
        arguments=planned_tensors(
            graph, graph.inputs, graph.input_paths, layouts.inputs, tuple(held)
        ),
        results=planned_tensors(graph, graph.outputs, graph.output_paths, layouts.outputs),
        segments=(),
        values=(),
        sequence=sequence,
        environment=Environment.of(mesh),
        bound=_bound(step, analysis, layouts),
    )


def _bound(step: Callable[..., Any], analysis: Analysis, layouts: Layouts) -> Bound:
    graph = analysis.graph
    shape: Any = jax.ShapeDtypeStruct
    shapes = [shape(graph.values[v].shape, graph.values[v].dtype) for v in graph.inputs]
    args = jax.tree.unflatten(graph.in_tree, shapes)
    return Bound(step, args, analysis, layouts)


def _same(shapes: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
    ours, theirs = jax.tree.leaves(shapes), jax.tree.leaves(args)
    tree: Any = jax.tree.structure(shapes)
    return tree == jax.tree.structure(args) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype)
        if hasattr(b, "dtype")
        else a.shape == jax.numpy.shape(b)
        for a, b in zip(ours, theirs, strict=True)
    )


def _explicit(plan: Plan, analysis: Analysis) -> Layouts:
    """The layouts of a plan that fixes tensors one by one, checked against the step."""
    graph = analysis.graph
    values, uses = _tensors(plan.values, graph)
    arguments = {tensor.path: tensor.layout for tensor in plan.arguments}
    results = {tensor.path: tensor.layout for tensor in plan.results}
    missing = [path for path in graph.output_paths if path not in results]
    if missing:
        raise CfpError(f"The plan is for another step: it has no result `{missing[0]}`.")
    inputs = tuple(arguments[path] for path in graph.input_paths)
    outputs = tuple(results[path] for path in graph.output_paths)
    return Layouts(inputs, outputs, values, uses)


def _tensors(
    planned: Sequence[PlannedValue], graph: Graph
) -> tuple[dict[int, Layout], dict[tuple[int, int], Layout]]:
    """Results, by value, and operands of equations, checked against the step."""
    values: dict[int, Layout] = {}
    uses: dict[tuple[int, int], Layout] = {}
    for fixed in planned:
        known = fixed.equation < len(graph.equations)
        equation = graph.equations[fixed.equation] if known else None
        tensors = () if equation is None else equation.outputs
        at = fixed.result
        if at is None:
            tensors, at = () if equation is None else equation.inputs, fixed.operand or 0
        shape = graph.values[tensors[at]].shape if at < len(tensors) else None
        if equation is None or equation.primitive != fixed.primitive or shape != fixed.shape:
            there = "nothing" if equation is None else f"{equation.primitive} {list(shape or ())}"
            raise CfpError(
                f"The plan is for another step: its equation {fixed.equation} is "
                f"{fixed.primitive} {list(fixed.shape)}, the step's is {there}."
            )
        if fixed.operand is None:
            values[tensors[at]] = fixed.layout
        else:
            uses[fixed.equation, fixed.operand] = fixed.layout
    return values, uses


def _check(analysis: Analysis, mesh: Mesh, strategies: Sequence[Strategy]) -> None:
    """Strategies that the sizes of the mesh do not divide are a caller's mistake."""
    shape = mesh.devices.shape
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
