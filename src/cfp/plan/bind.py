"""A plan that learns its step: what its file says, as layouts of the step that is traced here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from cfp.analysis import Analysis
from cfp.layouts import Layout, Layouts
from cfp.plan.assemble import lay_segments
from cfp.plan.bound import Bound
from cfp.plan.build import analyze_for, bound_to, build_plan
from cfp.plan.choice import strategies_of
from cfp.plan.plan import Plan, PlannedValue
from cfp.plan.tensor import another_step, difference, planned_tensors
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.trace import Graph
from cfp.trace.calling import AnotherProgram


def bind_plan(plan: Plan, step: Callable[..., Any], args: tuple[Any, ...]) -> Plan:
    """Returns the plan with its step, which must have the arguments and segments it is for."""
    if plan.bound is not None and plan.bound.step is step and _same(plan.bound, args):
        return plan
    return bind_analysed(plan, step, analyze_for(step, args, plan.mesh, sequence=plan.sequence))


def bind_analysed(plan: Plan, step: Callable[..., Any], analysis: Analysis) -> Plan:
    """Returns the plan with its step, which was analysed for the plan's mesh."""
    graph = analysis.graph
    found = planned_tensors(graph, graph.inputs, graph.input_paths, [(None,)] * len(graph.inputs))
    differs = difference(plan.arguments, found)
    if differs:
        raise another_step(differs)
    if plan.values or (analysis.segments and not plan.segments):  # arguments and results alone
        layouts = _explicit(plan, analysis)
    elif any(segment.state is None for segment in plan.segments):
        layouts = _as_a_whole(plan, step, analysis)
    else:
        layouts = _by_segments(plan, analysis)
    results = planned_tensors(graph, graph.outputs, graph.output_paths, layouts.outputs)
    return replace(plan, results=results, bound=bound_to(step, analysis, layouts))


def _arguments(plan: Plan, graph: Graph) -> dict[int, Layout]:
    """Returns how the plan's arguments lie, by their positions in the step."""
    wanted = {tensor.path: tensor.layout for tensor in plan.arguments}
    return {position: wanted[path] for position, path in enumerate(graph.input_paths)}


def _by_segments(plan: Plan, analysis: Analysis) -> Layouts:
    """Returns layouts in which segments are as they were measured, and arguments as the file says:
    a spec that was edited by hand counts."""
    strategies = strategies_of(analysis, plan.segments)
    chosen = []
    for segment, choice in zip(analysis.segments, plan.segments, strict=True):
        assert choice.state is not None
        splits = tuple(strategies[block] for block in segment.blocks)
        chosen.append((splits, choice.state, choice.keep))
    interfaces = find_interfaces(analysis, find_kinds(analysis))
    return lay_segments(analysis, interfaces, chosen, _arguments(plan, analysis.graph))


def _as_a_whole(plan: Plan, step: Callable[..., Any], analysis: Analysis) -> Layouts:
    """Returns the step laid out again from a strategy per block, where a spec that was edited by
    hand counts too."""
    strategies = strategies_of(analysis, plan.segments)
    arguments = _arguments(plan, analysis.graph)
    fixed = {tensor.path for tensor in plan.arguments if tensor.held}
    paths = analysis.graph.input_paths
    held = {position: arguments[position] for position, path in enumerate(paths) if path in fixed}

    def lay(held: dict[int, Layout]) -> Layouts:
        made = build_plan(step, analysis, plan.mesh, strategies, name=plan.name, held=held)
        return made.known("bind").layouts

    layouts = lay(held)
    changed = {
        position: layout
        for position, layout in arguments.items()
        if layouts.inputs[position] != layout
    }
    return lay({**held, **changed}) if changed else layouts


def _same(bound: Bound, args: tuple[Any, ...]) -> bool:
    """Returns whether these arguments make the program that the plan is bound to."""
    try:
        arrays = bound.calling.arrays(args)
    except AnotherProgram:
        return False
    ours, theirs = jax.tree.leaves(bound.args), jax.tree.leaves(arrays)
    tree: Any = jax.tree.structure(bound.args)
    return tree == jax.tree.structure(arrays) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype)
        if hasattr(b, "dtype")
        else a.shape == jax.numpy.shape(b)
        for a, b in zip(ours, theirs, strict=True)
    )


def _explicit(plan: Plan, analysis: Analysis) -> Layouts:
    """Returns the layouts of a plan that fixes tensors one by one, checked against the step."""
    graph = analysis.graph
    values, uses = _tensors(plan.values, graph)
    arguments = {tensor.path: tensor.layout for tensor in plan.arguments}
    results = {tensor.path: tensor.layout for tensor in plan.results}
    missing = [path for path in graph.output_paths if path not in results]
    if missing:
        raise another_step(f"it has no result `{missing[0]}`")
    inputs = tuple(arguments[path] for path in graph.input_paths)
    outputs = tuple(results[path] for path in graph.output_paths)
    return Layouts(inputs, outputs, values, uses)


def _tensors(
    planned: Sequence[PlannedValue], graph: Graph
) -> tuple[dict[int, Layout], dict[tuple[int, int], Layout]]:
    """Returns the layouts of results, by value, and of operands of equations, checked against the
    step."""
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
            raise another_step(
                f"its equation {fixed.equation} is {fixed.primitive} {list(fixed.shape)}, the "
                f"step's is {there}"
            )
        if fixed.operand is None:
            values[tensors[at]] = fixed.layout
        else:
            uses[fixed.equation, fixed.operand] = fixed.layout
    return values, uses
