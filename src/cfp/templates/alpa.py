"""Alpa: the plan that Alpa's integer program finds cheapest, by its symbolic cost of communication.

The cost formulas, and what differs from Alpa's own code, are in `alpa_ilp`. They are symbols, not
measurements, and the plan's notes say so, with the gap that the solver left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.layouts import AnyMesh, Layouts
from cfp.plan import Plan, plan_of_layouts
from cfp.plan.build import analyze_for
from cfp.plan.pins import resolve_pins
from cfp.templates.alpa_ilp import AlpaOptions, solve_alpa


def alpa(
    step: Callable[..., Any],
    *args: Any,
    mesh: AnyMesh,
    pins: Mapping[str, Any] | None = None,
    options: AlpaOptions | None = None,
    time_limit_s: float = 60.0,
) -> Plan:
    """Returns Alpa's intra-operator plan; at the time limit the best one found so far counts."""
    analysis = analyze_for(step, args, mesh)
    parameters = analysis.grouping.parameters
    feedback = find_feedback(analysis.graph, parameters)
    solution = solve_alpa(
        analysis.graph,
        mesh.axis_sizes,
        parameters=parameters,
        feedback=feedback,
        options=options or AlpaOptions(),
        time_limit_s=time_limit_s,
    )
    notes = [
        f"Alpa's integer program: {solution.status}, gap {100 * solution.gap:.2g} %, symbolic cost "
        f"{solution.cost:.6g} (Alpa's formulas, nothing measured)."
    ]
    if solution.relented:
        notes.append("Alpa's rules forbid every assignment here: this is the least forbidden one.")
    layouts = _pinned(analysis, mesh, solution.layouts, pins or {}, feedback)
    return plan_of_layouts(step, analysis, mesh, layouts, name="alpa", notes=tuple(notes))


def _pinned(
    analysis: Analysis,
    mesh: AnyMesh,
    layouts: Layouts,
    pins: Mapping[str, Any],
    feedback: Mapping[int, int],
) -> Layouts:
    """Returns the layouts with pinned arguments as pinned; their uses stay as solved and are
    resharded to."""
    held = resolve_pins(analysis.graph, mesh, pins)
    inputs = tuple(held.get(i, layout) for i, layout in enumerate(layouts.inputs))
    outputs = tuple(
        held.get(feedback.get(i, -1), layout) for i, layout in enumerate(layouts.outputs)
    )
    return replace(layouts, inputs=inputs, outputs=outputs)
