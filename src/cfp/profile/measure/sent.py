"""What a measured program sends, told by the line of the user's code that makes it so.

The compiler names a tensor that it sends after the operation that needed it, and so it leads back
to an equation (`trace.evaluate`). What comes from one line, by one kind of collective and over the
same mesh axes, is one row:

    bytes = Σ over programs of times per step * Σ over its collectives of times * bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cfp.links.collectives import MeshCollective
from cfp.trace import Graph, source_line
from cfp.trace.evaluate import equations_of

UNKNOWN = "unknown"  # the source of what the compiler does not name


@dataclass(frozen=True, slots=True)
class Sent:
    """The tensors that collectives of one kind move for one line of the user's code, `times` a step
    in all. `axes` are mesh axes by position, None for part of one; `bytes` are on one device. One
    of two segments measured in a row has half, so that `times` may be no whole number."""

    kind: str
    axes: tuple[int, ...] | None
    source: str
    times: float
    bytes: float


@dataclass(frozen=True, slots=True)
class ProgramSends:
    """The collectives of a program that runs `times` in a step."""

    graph: Graph
    times: float
    collectives: Sequence[MeshCollective]


def sent_by(programs: Iterable[ProgramSends]) -> tuple[Sent, ...]:
    """Returns what the programs send in a step, the largest first."""
    found: dict[tuple[str, tuple[int, ...] | None, str], tuple[float, float]] = {}
    for program in programs:
        for one in program.collectives:
            for piece in one.pieces:
                key = (one.kind, one.axes, _source(program.graph, piece.op_name))
                times, size = found.get(key, (0.0, 0.0))
                often = program.times * one.times
                found[key] = times + often, size + often * piece.bytes
    rows = [Sent(*key, *counted) for key, counted in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.kind, row.source)))


def _source(graph: Graph, op_name: str) -> str:
    index = next((i for i in equations_of(op_name) if i < len(graph.equations)), None)
    return UNKNOWN if index is None else source_line(graph.equations[index])
