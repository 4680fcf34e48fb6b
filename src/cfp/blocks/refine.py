"""Phase 2: a block is split where resharding inside it would move less than at its end.

A point of a block's program, after all its seeds, parts it in two. Resharding there moves the
tensors that cross; resharding after the block moves what the second half hands out. Where the
crossing is smaller, keeping the block whole would hide a cheaper plan (the paper's Theorem 1,
case 2), so the crossing tensors are cut and the sweep runs again. As in the paper, only points
before a further contraction or before an operation that takes a part of a tensor can qualify.

`trim` does the same at a block's end, without a new block: a last equation whose result only
others read goes to its reader if less crosses then (the square in a norm of the residual stream,
a cast to a wider type).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from cfp.blocks.grow import Growing, Growth
from cfp.blocks.operands import OPERANDS
from cfp.trace import LOOP_STACK, Graph, Role

PARTS = frozenset(
    {"slice", "dynamic_slice", "split", "gather", "reduce_sum", "reduce_max", "reduce_min"}
)


def find_cuts(growth: Growth) -> frozenset[int]:
    """The values at which blocks of this sweep should be split."""
    returned = frozenset(growth.graph.outputs)
    return frozenset(
        value for block in growth.blocks for value in _cut(growth.graph, block, returned)
    )


def trim(growth: Growth) -> None:
    """Drops last members from blocks while that makes what leaves the block smaller."""
    graph = growth.graph
    returned = set(graph.outputs)
    for block in growth.blocks:
        members = set(block.members)
        for member in reversed(block.members):
            equation = graph.equations[member]
            last = not any(r in members for v in equation.outputs for r in graph.readers[v])
            if equation.primitive in OPERANDS or not last:
                continue  # a contraction is a member wherever it stands
            if any(_is_returned(graph, returned, v) for v in equation.outputs):
                continue
            removed = _leaving_bytes(graph, members, equation.outputs)
            inside = [v for v in equation.inputs if graph.values[v].producer in members]
            kept = _leaving_bytes(graph, members, inside)
            crossing = sum(graph.values[v].size_bytes for v in dict.fromkeys(inside))
            if crossing - kept < removed:
                members.remove(member)
                for value in equation.outputs:
                    del growth.owner[value], growth.positions[value]
        block.members = sorted(members)


def _is_returned(graph: Graph, returned: Set[int], value: int) -> bool:
    """A result of the step, itself or stacked by its loop."""
    readers = [graph.equations[r] for r in graph.readers[value]]
    stacked = [r.outputs[0] for r in readers if r.primitive == LOOP_STACK]
    return value in returned or not returned.isdisjoint(stacked)


def _leaving_bytes(graph: Graph, members: set[int], values: Iterable[int]) -> int:
    """Bytes of those values that forward equations outside the block read."""
    return sum(
        graph.values[v].size_bytes
        for v in dict.fromkeys(values)
        if any(r not in members and _is_forward(graph, r) for r in graph.readers[v])
    )


def _cut(graph: Graph, block: Growing, returned: Set[int]) -> tuple[int, ...]:
    inner = [m for m in block.members if m not in block.seeds]
    if not any(graph.equations[m].primitive in OPERANDS or _is_part(graph, m) for m in inner):
        return ()
    best: tuple[int, tuple[int, ...]] | None = None
    for crossing, leaving in _points(graph, block, returned):
        moved = sum(graph.values[v].size_bytes for v in crossing)
        handed_out = sum(graph.values[v].size_bytes for v in leaving)
        if moved < handed_out and (best is None or moved < best[0]):
            best = (moved, crossing)
    return best[1] if best else ()


def _points(
    graph: Graph, block: Growing, returned: Set[int]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """(values that cross, values the second half hands out) at every point worth a look."""
    members = set(block.members)
    produced: dict[int, list[int]] = {}  # value -> readers inside the block
    leaves: set[int] = set()
    for member in block.members:
        for value in graph.equations[member].outputs:
            readers = graph.readers[value]
            produced[value] = [r for r in readers if r in members]
            outside = (r for r in readers if r not in members)
            if value in returned or any(_is_forward(graph, r) for r in outside):
                leaves.add(value)
    last_seed = max(block.seeds)
    for member in block.members:
        special = graph.equations[member].primitive in OPERANDS or _is_part(graph, member)
        if member <= last_seed or not special:
            continue
        crossing = tuple(
            value
            for value, readers in produced.items()
            if _producer(graph, value) < member and any(r >= member for r in readers)
        )
        leaving = [value for value in leaves if _producer(graph, value) >= member]
        yield crossing, leaving


def _is_forward(graph: Graph, reader: int) -> bool:
    """Reads for the forward pass; stacking a residual for the backward loop does not count."""
    equation = graph.equations[reader]
    if equation.primitive == LOOP_STACK:
        stacked = equation.outputs[0]
        return stacked in graph.outputs or any(
            _is_forward(graph, r) for r in graph.readers[stacked]
        )
    return equation.role is Role.FORWARD


def _is_part(graph: Graph, member: int) -> bool:
    return graph.equations[member].primitive in PARTS


def _producer(graph: Graph, value: int) -> int:
    producer = graph.values[value].producer
    assert producer is not None
    return producer
