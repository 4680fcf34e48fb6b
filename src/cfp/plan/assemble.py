"""From one option per segment to a plan of the whole step.

Strategies go to the blocks. An argument that would then lie otherwise than it was measured at its
home (split further by the option, or read by several segments) is held as it was measured. What one
segment made and another reads is read as it was when that was measured: how it was made does not
spread over segments that were measured otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.blocks import Strategy
from cfp.layouts import Entries, Layout, Layouts
from cfp.plan.build import build_plan
from cfp.plan.plan import Plan
from cfp.profile import Option
from cfp.profile.boundary import End, find_entries, find_homes
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

    laid = _Laid(kinds, options)
    wanted = laid.arguments(analysis)
    entries = laid.entries(analysis)
    held: dict[int, Layout] = {}
    while True:  # holding a parameter may move its optimizer state, which is then held too
        plan = build_plan(
            step,
            analysis,
            mesh,
            strategies,
            name=name,
            held=held,
            entries=entries,
            pins=pins,
            sequence=sequence,
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


class _Laid:
    """How the tensors of every segment lie, as it was measured."""

    def __init__(self, kinds: Sequence[Kind], options: Sequence[Option]) -> None:
        self._kinds, self._options = kinds, options
        self._known: dict[tuple[int, Option], tuple[Layouts, ...]] = {}

    def _at(self, segment: int, end: End) -> Layout:
        key = (end.kind, self._options[segment])
        if key not in self._known:
            self._known[key] = self._kinds[end.kind].layouts(self._options[segment])
        return end.layout(self._known[key])

    def arguments(self, analysis: Analysis) -> dict[int, Layout]:
        """Position of an argument -> how it lies at its home."""
        homes = find_homes(analysis, self._kinds)
        return {
            position: self._at(*homes[value])
            for position, value in enumerate(analysis.graph.inputs)
            if value in homes
        }

    def entries(self, analysis: Analysis) -> Entries:
        """(equation, operand) -> how it is read, of tensors that another segment made."""
        found = find_entries(analysis, self._kinds)
        return {where: self._at(segment, end) for where, (segment, end) in found.items()}
