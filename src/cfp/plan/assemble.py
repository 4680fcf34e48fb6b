"""From one option per segment to a plan of the whole step.

Strategies go to the blocks. An argument that would then lie otherwise than it was measured at its
home (split further by the option, or read by several segments) is held as it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.blocks import Strategy
from cfp.layouts import Layout, Layouts
from cfp.plan.build import build_plan
from cfp.plan.plan import Plan
from cfp.profile import Option
from cfp.profile.boundary import find_homes
from cfp.profile.kinds import Kind


def assemble_plan(
    step: Callable[..., Any],
    analysis: Analysis,
    mesh: Mesh,
    kinds: Sequence[Kind],
    options: Sequence[Option],
    *,
    name: str,
    pins: Mapping[str, Any] | None = None,
    sequence: bool = False,
) -> Plan:
    """The plan in which every segment runs as its option says."""
    strategies = strategies_of_options(analysis, kinds, options)

    wanted = measured_layouts(analysis, kinds, options)
    held: dict[int, Layout] = {}
    while True:  # holding a parameter may move its optimizer state, which is then held too
        plan = build_plan(
            step, analysis, mesh, strategies, name=name, held=held, pins=pins, sequence=sequence
        )
        differs = {
            position: wanted[position]
            for position, tensor in enumerate(plan.arguments)
            if not tensor.held and wanted.get(position, tensor.layout) != tensor.layout
        }
        if not differs:
            return plan
        held |= differs


def strategies_of_options(
    analysis: Analysis, kinds: Sequence[Kind], options: Sequence[Option]
) -> list[Strategy]:
    """A strategy per block of the step."""
    found: list[Strategy] = [()] * len(analysis.blocks)
    for segment, option in zip(analysis.segments, options, strict=True):
        chosen = kinds[segment.kind].chosen(option)
        for block, strategy in zip(segment.blocks, chosen, strict=True):
            found[block] = strategy
    return found


def measured_layouts(
    analysis: Analysis, kinds: Sequence[Kind], options: Sequence[Option]
) -> dict[int, Layout]:
    """Position of an argument -> how it lies at its home."""
    laid: dict[tuple[int, Option], tuple[Layouts, ...]] = {}
    homes = find_homes(analysis, kinds)
    found: dict[int, Layout] = {}
    for position, value in enumerate(analysis.graph.inputs):
        if value in homes:
            segment, end = homes[value]
            key = (end.kind, options[segment])
            if key not in laid:
                laid[key] = kinds[end.kind].layouts(options[segment])
            found[position] = end.layout(laid[key])
    return found
