"""The verifier of stage 3, run in tests: the parts hold every equation once, in a valid order."""

from __future__ import annotations

from cfp.blocks import Blocks
from cfp.segments.segment import Segments
from cfp.trace import Graph


def check_segments(graph: Graph, blocks: Blocks, segments: Segments) -> None:
    """Raises ValueError naming the equation, part or segment that breaks an invariant."""
    placed = [e for part in segments.parts for e in part.equations]
    if sorted(placed) != list(range(len(graph.equations))):
        raise ValueError("The parts do not hold every equation exactly once.")
    if [b for segment in segments.segments for b in segment.blocks] != list(
        range(len(blocks.blocks))
    ):
        raise ValueError("The segments do not cover the blocks in order.")
    order = {e: at for at, part in enumerate(segments.parts) for e in part.equations}
    for equation in graph.equations:
        for value in equation.inputs:
            producer = graph.values[value].producer
            if producer is not None and order[producer] > order[equation.index]:
                raise ValueError(
                    f"Equation {equation.index} ({equation.primitive}) in part "
                    f"{order[equation.index]} reads {graph.describe(value)}, which part "
                    f"{order[producer]} makes later."
                )
    for segment in segments.segments:
        loops = {blocks.blocks[b].loop for b in segment.blocks}
        if loops != {segment.loop}:
            raise ValueError(f"Segment {segment.index} straddles loops {loops}.")
    for kind in segments.kinds:
        for occurrence in kind.occurrences:
            if segments.segments[occurrence].kind != kind.index:
                raise ValueError(f"Segment {occurrence} is not of kind {kind.index}.")
