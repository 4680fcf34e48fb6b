"""Phase 2: a block ends, or is split, where the least has to cross.

A point of a block's program, after all its seeds, parts it in two. Resharding there moves the
tensors that cross and would not leave the block anyway, and what the second half reads of other
blocks; resharding after the block moves what the second half hands out. Where the crossing is
smaller, keeping the block whole would hide a cheaper plan (the paper's Theorem 1, case 2), so
`find_cuts` names the crossing tensors and the sweep runs again. The paper looks only before
further contractions and operations that take a part of a tensor. Other points are looked at too,
for casts and several ways out, but there the crossing must be half or less: a token appended to
a sequence is not worth a block of its own.

`trim` does the same at a block's end, one equation at a time: a last equation whose result only
others read goes to its reader if less crosses then (the square in a norm of the residual stream).

Equations that only the backward pass reads (1 - tanh²) do not count: they follow what they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from cfp.blocks.grow import Growth
from cfp.blocks.operands import OPERANDS
from cfp.blocks.ownership import Growing
from cfp.trace import LOOP_STACK, Graph, Role

SPECIAL = frozenset(OPERANDS) | {
    "slice",
    "dynamic_slice",
    "split",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
}


@dataclass(slots=True)
class _Exits:
    """What the forward pass reads of a block: `leaving` values, and members on the way there."""

    useful: set[int]
    leaving: set[int]


def find_cuts(growth: Growth) -> frozenset[int]:
    """Returns the values at which blocks of this sweep should be split."""
    graph = growth.graph
    return frozenset(
        value for block in growth.blocks for value in _cut(graph, block, growth.sources.keys())
    )


def trim(growth: Growth) -> None:
    """Drops last members from blocks while that makes what leaves the block smaller."""
    graph = growth.graph
    for block in growth.blocks:
        dropped = _droppable(graph, block, growth.sources.keys())
        for member in block.members:  # what only the backward pass reads follows
            equation = graph.equations[member]
            if member not in dropped and any(_made_by(graph, v, dropped) for v in equation.inputs):
                dropped.add(member)
        block.members = [member for member in block.members if member not in dropped]
        for member in dropped:
            for value in graph.equations[member].outputs:
                del growth.owner[value], growth.positions[value]


def _droppable(graph: Graph, block: Growing, from_blocks: Set[int]) -> set[int]:
    members = set(block.members)
    exits = _exits(graph, block.members)
    dropped: set[int] = set()
    for member in reversed(block.members):
        equation = graph.equations[member]
        inner = members & exits.useful
        last = not any(r in inner for v in equation.outputs for r in graph.readers[v])
        if equation.primitive in OPERANDS or member not in exits.useful or not last:
            continue  # a contraction is a member wherever it stands
        if any(_is_returned(graph, v) for v in equation.outputs):
            continue
        removed = _bytes(graph, (v for v in equation.outputs if v in exits.leaving))
        read = from_blocks & set(equation.inputs)
        if _bytes(graph, read - exits.leaving) < removed:
            members.remove(member)
            dropped.add(member)
            exits.leaving |= read
    return dropped


def _cut(graph: Graph, block: Growing, from_blocks: Set[int]) -> tuple[int, ...]:
    """Returns the crossing tensors of the point where least crosses, if that is less than
    leaves."""
    exits = _exits(graph, block.members)
    waiting = {  # value -> forward readers inside the block that have not run yet
        value: sum(r in exits.useful for r in graph.readers[value])
        for member in block.members
        for value in graph.equations[member].outputs
    }
    last_seed = max(block.seeds)
    handed_out = _bytes(graph, exits.leaving)
    entering = _entering(graph, block, exits, waiting.keys(), from_blocks)
    crossing: dict[int, None] = {}
    best: tuple[int, tuple[int, ...]] | None = None
    for member in block.members:
        if member not in exits.useful:
            continue
        equation = graph.equations[member]
        if member > last_seed:
            moved = _bytes(graph, crossing.keys() - exits.leaving) + entering[member]
            enough = (
                moved < handed_out
                if equation.primitive in SPECIAL
                else (2 * moved <= handed_out and handed_out > 0)
            )
            if enough and (best is None or moved < best[0]):
                best = (moved, tuple(crossing))
        for value in dict.fromkeys(equation.inputs):
            if value in waiting:
                waiting[value] -= 1
                if not waiting[value]:
                    crossing.pop(value, None)
        for value in equation.outputs:
            if value in exits.leaving:
                handed_out -= graph.values[value].size_bytes
            if waiting[value]:
                crossing[value] = None
    return best[1] if best else ()


def _entering(
    graph: Graph, block: Growing, exits: _Exits, made: Set[int], from_blocks: Set[int]
) -> dict[int, int]:
    """Returns for each member the bytes of other blocks' values that it and the members after it
    read."""
    seen: set[int] = set()
    total = 0
    entering: dict[int, int] = {}
    for member in reversed(block.members):
        if member in exits.useful:
            new = (from_blocks & set(graph.equations[member].inputs)) - made - seen
            seen |= new
            total += _bytes(graph, new)
        entering[member] = total
    return entering


def _exits(graph: Graph, members: Iterable[int]) -> _Exits:
    inside = set(members)
    exits = _Exits(set(), set())
    for member in sorted(inside, reverse=True):
        for value in graph.equations[member].outputs:
            readers = graph.readers[value]
            if value in graph.returned or any(
                r not in inside and _is_forward(graph, r) for r in readers
            ):
                exits.leaving.add(value)
                exits.useful.add(member)
            elif any(r in exits.useful for r in readers):
                exits.useful.add(member)
    return exits


def _is_returned(graph: Graph, value: int) -> bool:
    """Returns whether a value is a result of the step, itself or stacked by its loop."""
    readers = [graph.equations[r] for r in graph.readers[value]]
    stacked = [r.outputs[0] for r in readers if r.primitive == LOOP_STACK]
    return value in graph.returned or not graph.returned.isdisjoint(stacked)


def _is_forward(graph: Graph, reader: int) -> bool:
    """Reads for the forward pass; stacking a residual for the backward loop does not count."""
    equation = graph.equations[reader]
    if equation.primitive == LOOP_STACK:
        stacked = equation.outputs[0]
        return stacked in graph.returned or any(
            _is_forward(graph, r) for r in graph.readers[stacked]
        )
    return equation.role is Role.FORWARD


def _made_by(graph: Graph, value: int, equations: Set[int]) -> bool:
    return graph.values[value].producer in equations


def _bytes(graph: Graph, values: Iterable[int]) -> int:
    return sum(graph.values[value].size_bytes for value in values)
