"""Backward contractions find the forward contraction they differentiate.

They share an operand with it, and the other operand is the cotangent of its result. The
backward pass visits the forward one in reverse, so the match only ever moves towards the start;
that settles weights used in several places. What `jax.checkpoint` computes again is recognised
by value numbering: same operation on the same values.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Mapping

from cfp.blocks.contraction import OPERANDS
from cfp.trace import LOOP_SLICE, LOOP_STACK, Graph, Role

# the backward pass of a lookup adds into the table instead of looking up
SCATTERS = frozenset({"scatter-add", "scatter_add"})
CONTRACTING = frozenset(OPERANDS) | SCATTERS


def canonical_values(graph: Graph, contractions: Collection[int]) -> dict[int, int]:
    """Value of the backward pass -> the forward value it repeats, where it does.

    Autodiff may rewrite what it recomputes (a softmax by its derivative rule), and value
    numbering loses the thread there. A recomputed contraction picks it up again: it does the
    same operation on one of the same operands or, failing that, is the next of its kind, for
    recomputation repeats the forward pass in order.
    """
    same: dict[int, int] = {}
    table: dict[tuple[object, ...], tuple[int, ...]] = {}
    recomputes = any(equation.recomputed for equation in graph.equations)
    if not recomputes and not graph.loops:
        return same
    by_op: dict[int, list[int]] = {}
    for index in sorted(contractions):
        by_op.setdefault(id(graph.equations[index].op), []).append(index)
    last: int | None = None
    for equation in graph.equations:
        loop = equation.loop
        twin = graph.loops[loop].twin if loop is not None else None
        inputs = tuple(same.get(value, value) for value in equation.inputs)
        # one stacked tensor sliced in two loops gives two values; all else is in the inputs
        place = (loop if twin is None else twin) if equation.primitive == LOOP_SLICE else None
        key = (id(equation.op), inputs, place)
        by_operand = [(id(equation.op), i, value) for i, value in enumerate(inputs)][::-1]
        if equation.role is Role.FORWARD:
            if recomputes or equation.primitive == LOOP_SLICE:
                table.setdefault(key, equation.outputs)
            if recomputes and equation.index in contractions:
                for part in by_operand:
                    table.setdefault(part, equation.outputs)
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
            continue
        contracts = equation.primitive in OPERANDS
        keys = [key, *by_operand] if contracts else [key]
        found = next((table[k] for k in keys if k in table), None)
        if found is None and contracts and last is not None:
            later = by_op.get(id(equation.op), [])
            position = bisect.bisect_right(later, last)
            if position < len(later):
                found = graph.equations[later[position]].outputs
        if found is not None:
            same.update(zip(equation.outputs, found, strict=True))
            if contracts:
                last = graph.values[found[0]].producer
    return same


def match_backward(
    graph: Graph, contractions: Collection[int], same: Mapping[int, int]
) -> dict[int, int]:
    """Backward contraction -> forward contraction, for those that share an operand."""
    by_operand: dict[int, list[int]] = {}
    for equation in graph.role(Role.FORWARD):
        if equation.index in contractions:
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
            if twin in contractions:
                matched[equation.index] = twin
                for value in equation.inputs:  # what differentiates it may read these instead
                    by_operand.setdefault(value, []).append(twin)
            continue
        found: tuple[int, int] | None = None
        for value in dict.fromkeys([*(same.get(v, v) for v in equation.inputs), *equation.inputs]):
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
    kind = graph.equations[backward].primitive
    if (kind in SCATTERS) != (graph.equations[forward].primitive == "gather"):
        return False
    count = math.prod(graph.values[graph.equations[forward].outputs[0]].shape)
    inputs = graph.equations[backward].inputs
    return any(math.prod(graph.values[v].shape) == count for v in inputs)
