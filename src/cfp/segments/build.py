"""Stage 3: the block sequence becomes segments, distinct ones found, the step cut into parts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from cfp.blocks import Block, Blocks
from cfp.segments.assign import assign
from cfp.segments.cover import Item, cover, name
from cfp.segments.edges import edges
from cfp.segments.fingerprint import Printer, digest
from cfp.segments.segment import DistinctSegment, Part, Phase, Segment, Segments
from cfp.trace import Graph


def build_segments(graph: Graph, blocks: Blocks) -> Segments:
    """Finds the distinct segments and cuts the step at their edges."""
    printer = Printer(graph, blocks)
    prints = printer.print_all()
    counts = [len(block.strategies(blocks.mesh_shape)) for block in blocks.blocks]
    items = [
        Item(
            mark.kind,
            mark.wiring,
            _choices(block, blocks.mesh_shape),
            block.loop,
            graph.times(block.loop),
        )
        for mark, block in zip(prints, blocks.blocks, strict=True)
    ]
    runs = cover(items)
    names: dict[Hashable, list[int]] = {}
    for i, run in enumerate(runs):
        names.setdefault(name(items, run), []).append(i)
    kind_of = {i: kind for kind, found in enumerate(names.values()) for i in found}
    segments = [
        Segment(
            index=i,
            kind=kind_of[i],
            blocks=tuple(range(start, stop)),
            loop=items[start].loop,
            times=items[start].times,
        )
        for i, (start, stop) in enumerate(runs)
    ]
    kinds = [
        _kind(index, found, segments, printer, items, counts)
        for index, found in enumerate(names.values())
    ]
    segment_of_block = [s.index for s in segments for _ in s.blocks]
    home = assign(graph, blocks, segment_of_block)
    return Segments(tuple(segments), tuple(kinds), _parts(graph, home, len(segments)), home)


def _choices(block: Block, mesh_shape: Sequence[int]) -> int:
    """Returns how many ways one mesh axis can split the block: the size of the space but for
    axes."""
    return max(len(block.strategies((size,))) for size in mesh_shape)


def _kind(
    index: int,
    found: list[int],
    segments: Sequence[Segment],
    printer: Printer,
    items: Sequence[Item],
    counts: Sequence[int],
) -> DistinctSegment:
    # the first occurrence may also compute what all share (masks, tables): prefer the second
    representative = found[1] if len(found) > 1 else found[0]
    run = segments[representative].blocks
    bounds = (run[0], run[-1] + 1)
    lines = [printer.texts[items[i].kind] for i in run]
    lines.append(f"wiring: {[part[1] for part in name(items, bounds)]}")  # type: ignore[attr-defined]
    text = "\n".join(lines)
    return DistinctSegment(
        index=index,
        fingerprint=digest(text),
        text=text,
        representative=representative,
        occurrences=tuple(found),
        times=sum(segments[i].times for i in found),
        strategies=tuple(counts[i] for i in run),
    )


def _parts(
    graph: Graph, home: Mapping[int, tuple[int | None, Phase]], count: int
) -> tuple[Part, ...]:
    """Returns all parts in running order."""
    order: list[tuple[int | None, Phase]] = [(None, Phase.SCHEDULE)]
    order += [(i, Phase.FORWARD) for i in range(count)]
    order += [(i, Phase.BACKWARD) for i in reversed(range(count))]
    order.append((None, Phase.EPILOGUE))
    order += [(i, Phase.UPDATE) for i in range(count)]
    grouped: dict[tuple[int | None, Phase], list[int]] = {place: [] for place in order}
    for equation in graph.equations:
        grouped[home[equation.index]].append(equation.index)
    return tuple(
        cut_part(graph, segment, phase, grouped[segment, phase])
        for segment, phase in order
        if grouped[segment, phase]
    )


def cut_part(graph: Graph, segment: int | None, phase: Phase, equations: Sequence[int]) -> Part:
    """Names the tensors that cross the edge of a set of equations."""
    return Part(segment, phase, tuple(equations), *edges(graph, equations))
