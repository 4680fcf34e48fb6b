"""What the devices send, by the place in the step that makes them send it.

The compiler merges collectives of one kind as it likes. So a row is a tensor that is sent, and the
last rows say how many collectives carry them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from cfp.memory_size import bytes_text
from cfp.plan import Collective, Origin, Plan
from cfp.plan.choice import alike, segments_text
from cfp.report.text import (
    add_row,
    new_table,
    shape_text,
)


def collectives_table(plan: Plan, collectives: Sequence[Collective]) -> Table:
    table = new_table(
        "Collectives (bytes on one device)", "kind", "over", "times", "each", "per step", "what"
    )
    rows = fold_collectives(plan, collectives)
    for row in rows:
        over = "part" if row.axes is None else "+".join(row.axes)
        each = bytes_text(row.origin.bytes)
        add_row(table, row.kind, over, str(row.times), each, bytes_text(row.bytes), row.what())
    table.add_section()
    for kind in dict.fromkeys(row.kind for row in rows):
        sent = sum(row.bytes for row in rows if row.kind == kind)
        tensors = sum(row.times for row in rows if row.kind == kind)
        runs = sum(c.times for c in collectives if c.kind == kind)
        what = f"in all; the compiler merged them into {runs}" if runs < tensors else "in all"
        add_row(table, kind, "", str(tensors), "", bytes_text(sent), what)
    return table


@dataclass(frozen=True, slots=True)
class SentTensors:
    """The tensors that one place of alike segments sends, `times` a step in all."""

    kind: str
    axes: tuple[str, ...] | None
    origin: Origin
    place: int | None
    segments: tuple[int, ...]
    times: int

    @property
    def bytes(self) -> int:
        return self.origin.bytes * self.times

    def what(self) -> str:
        origin = self.origin
        tensor = f"{origin.dtype}{shape_text(origin.shape)}"
        if origin.role == "unknown":
            return f"{tensor} of unknown origin"
        where = ""
        if self.segments:
            several = "s" if len(self.segments) > 1 else ""
            where = f" segment{several} {segments_text(self.segments)}"
        block = "" if self.place is None else f" block {self.place}"
        source = "" if origin.source == "unknown" else f" at {origin.source}"
        return f"{tensor} {origin.role}{where}{block}: {origin.primitive}{source}"


def fold_collectives(plan: Plan, collectives: Sequence[Collective]) -> list[SentTensors]:
    """Returns the tensors that are sent, those of alike segments together, the largest first."""
    group_of: dict[int | None, int] = {
        index: n for n, group in enumerate(alike(plan.segments)) for index in group
    }
    place_of = _places(plan)
    groups: dict[object, list[tuple[Collective, Origin, int | None]]] = {}
    for collective in collectives:
        for origin in collective.origins:
            place = place_of.get((origin.segment, origin.block))
            key = (
                collective.kind,
                collective.axes,
                (origin.dtype, origin.shape, origin.bytes),
                (origin.role, origin.primitive, origin.source),
                group_of.get(origin.segment),
                place,
            )
            groups.setdefault(key, []).append((collective, origin, place))
    rows = [
        SentTensors(
            group[0][0].kind,
            group[0][0].axes,
            group[0][1],
            group[0][2],
            tuple(sorted({o.segment for _, o, _ in group if o.segment is not None})),
            sum(collective.times for collective, _, _ in group),
        )
        for group in groups.values()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.kind, row.what()))


def _places(plan: Plan) -> dict[tuple[int | None, int | None], int]:
    """Returns a dict: (segment, block of the step) -> which of the segment's blocks it is."""
    found: dict[tuple[int | None, int | None], int] = {}
    block = 0
    for index, segment in enumerate(plan.segments):
        for place in range(len(segment.blocks)):
            found[index, block] = place
            block += 1
    return found
