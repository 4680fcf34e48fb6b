"""From one option per segment to a plan of the whole step.

Every segment is put where it occurs as it was measured (`cfp.layouts.substitute`): nothing is laid
out a second time. An argument lies as its home segment was measured, unless a pin or the plan's
file says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.layouts import AnyMesh, Layout, Layouts, Placed, substitute
from cfp.plan.build import Chosen, plan_of_choices
from cfp.plan.pins import resolve_pins
from cfp.plan.plan import Plan
from cfp.profile.programs.boundary import Interfaces
from cfp.profile.programs.kinds import Option


def assemble_plan(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: AnyMesh,
    interfaces: Interfaces,
    options: Sequence[Option],
    *,
    name: str,
    pins: Mapping[str, Any] | None = None,
) -> Plan:
    """Returns the plan in which every segment runs as its option says."""
    chosen: list[Chosen] = []
    for segment, option in zip(analysis.segments, options, strict=True):
        kind = interfaces.kinds[segment.kind]
        chosen.append((kind.chosen(option), option.state, option.keep))
    pinned = resolve_pins(analysis.graph, mesh, pins or {})
    layouts = lay_segments(analysis, interfaces, chosen, pinned)
    return plan_of_choices(step, analysis, mesh, layouts, chosen, name=name, held=tuple(pinned))


def lay_segments(
    analysis: Analysis,
    interfaces: Interfaces,
    chosen: Sequence[Chosen],
    fixed: Mapping[int, Layout],
) -> Layouts:
    """Returns the layouts of the step; `fixed` are those of arguments, by position."""
    graph = analysis.graph
    known: dict[tuple[int, Chosen], tuple[Layouts, ...]] = {}
    laid: list[tuple[Layouts, ...]] = []  # per segment, of its programs
    placed: list[Placed] = []
    for segment, how in zip(analysis.segments, chosen, strict=True):
        kind = interfaces.kinds[segment.kind]
        if (kind.index, how) not in known:
            known[kind.index, how] = kind.lay(*how)
        laid.append(known[kind.index, how])
        where = interfaces.places[segment.index].equations
        placed += [
            Placed(extract.graph, lie, equations)
            for extract, lie, equations in zip(kind.extracts, laid[-1], where, strict=True)
        ]
    arguments = {
        value: end.layout(laid[segment]) for value, (segment, end) in interfaces.homes.items()
    }
    arguments |= {graph.inputs[position]: layout for position, layout in fixed.items()}
    feedback = find_feedback(graph, analysis.grouping.parameters)
    return substitute(graph, analysis.mesh_shape, placed, arguments, feedback)
