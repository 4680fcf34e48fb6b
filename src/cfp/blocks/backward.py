"""Backward contractions find the forward contraction they differentiate.

They share an operand with it, and the other operand is the cotangent of its result. The
backward pass visits the forward one in reverse, so the match only ever moves towards the start;
that settles weights used in several places. What `jax.checkpoint` computes again is recognised
by value numbering: same operation on the same values.
"""

from __future__ import annotations

from collections.abc import Mapping

from cfp.blocks.contraction import OPERANDS
from cfp.trace import LOOP_SLICE, LOOP_STACK, Graph, Role

# the backward pass of a lookup adds into the table instead of looking up
SCATTERS = frozenset({"scatter-add", "scatter_add"})
CONTRACTING = frozenset(OPERANDS) | SCATTERS


def canonical_values(graph: Graph) -> dict[int, int]:
    """Value of the backward pass -> the forward value it repeats, where it does."""
    same: dict[int, int] = {}
    table: dict[tuple[object, ...], tuple[int, ...]] = {}
    recomputes = any(equation.recomputed for equation in graph.equations)
    if not recomputes and not graph.loops:
        return same
    for equation in graph.equations:
        loop = equation.loop
        twin = graph.loops[loop].twin if loop is not None else None
        inputs = tuple(same.get(value, value) for value in equation.inputs)
        key = (id(equation.op), inputs, loop if twin is None else twin)
        if equation.role is Role.FORWARD:
            if recomputes or equation.primitive == LOOP_SLICE:
                table.setdefault(key, equation.outputs)
            continue
        if equation.primitive == LOOP_SLICE and twin is not None:
            stack = graph.values[inputs[0]].producer
            if stack is not None and graph.equations[stack].primitive == LOOP_STACK:
                same[equation.outputs[0]] = graph.equations[stack].inputs[0]
                continue
        elif not equation.recomputed:
            continue
        if equation.primitive == "optimization_barrier":
            same.update(zip(equation.outputs, inputs, strict=True))
        elif key in table:
            same.update(zip(equation.outputs, table[key], strict=True))
    return same


def match_backward(
    graph: Graph, home: Mapping[int, int], same: Mapping[int, int]
) -> dict[int, int]:
    """Backward contraction -> forward contraction, for those that share an operand."""
    by_operand: dict[int, list[int]] = {}
    for equation in graph.role(Role.FORWARD):
        if equation.primitive in OPERANDS and equation.index in home:
            for value in dict.fromkeys(equation.inputs):
                by_operand.setdefault(value, []).append(equation.index)
    matched: dict[int, int] = {}
    taken: set[tuple[int, int]] = set()
    reached = len(graph.equations)
    for equation in graph.role(Role.BACKWARD):
        if equation.primitive not in CONTRACTING:
            continue
        twin = _repeated(graph, equation.outputs[0], same)
        if twin is not None:
            matched[equation.index] = twin
            continue
        found: tuple[int, int] | None = None
        for value in dict.fromkeys(same.get(v, v) for v in equation.inputs):
            for forward in reversed(by_operand.get(value, ())):
                fits = forward <= reached and _differentiates(graph, equation.index, forward)
                if fits and (forward, value) not in taken:
                    if found is None or forward > found[0]:
                        found = (forward, value)
                    break
        if found is not None:
            matched[equation.index] = reached = found[0]
            taken.add(found)
    return matched


def _repeated(graph: Graph, value: int, same: Mapping[int, int]) -> int | None:
    if value not in same:
        return None
    return graph.values[same[value]].producer


def _differentiates(graph: Graph, backward: int, forward: int) -> bool:
    """One operand of the backward contraction has as many elements as the forward result."""
    result = graph.values[graph.equations[forward].outputs[0]]
    kind = graph.equations[backward].primitive
    if (kind in SCATTERS) != (graph.equations[forward].primitive == "gather"):
        return False
    count = _count(result.shape)
    return any(_count(graph.values[v].shape) == count for v in graph.equations[backward].inputs)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
