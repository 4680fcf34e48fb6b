"""Backward contractions find the forward contraction they differentiate.

They share an operand with it, and the other operand is the cotangent of its result. The
backward pass visits the forward one in reverse, so the match only ever moves towards the start;
that settles weights used in several places. What `jax.checkpoint` computes again is recognised
by value numbering: same operation on the same values.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cfp.blocks.operands import OPERANDS
from cfp.trace import LOOP_SLICE, LOOP_STACK, Graph, Role

# the backward pass of a lookup adds into the table instead of looking up
SCATTERS = frozenset({"scatter-add", "scatter_add"})
CONTRACTING = frozenset(OPERANDS) | SCATTERS
VIEWS = frozenset({"rev", "transpose", "reshape", "convert_element_type", "copy", "squeeze"})


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What the backward pass computes again.

    `same` maps a value of the backward pass to the forward value it repeats, where known;
    `equations` are those that repeat the forward pass rather than carry a cotangent.
    """

    same: Mapping[int, int]
    equations: frozenset[int]


def find_recomputed(graph: Graph, contractions: Collection[int]) -> Recomputed:
    """Value numbering of what `jax.checkpoint` recomputes and of what backward loops read.

    Autodiff may rewrite what it recomputes (a softmax by its derivative rule), and value
    numbering loses the thread there. A recomputed contraction picks it up again: it does the
    same operation on one of the same operands or, failing that, is the next of its kind, for
    recomputation repeats the forward pass in order.
    """
    same: dict[int, int] = {}
    repeats: set[int] = set()
    table: dict[tuple[object, ...], tuple[int, ...]] = {}
    by_op: dict[int, list[int]] = {}
    for index in sorted(contractions):
        by_op.setdefault(id(graph.equations[index].op), []).append(index)
    cotangents: set[int] = set()
    varying = set(graph.inputs)  # depends on an argument
    last: int | None = None
    for equation in graph.equations:
        if not varying.isdisjoint(equation.inputs):
            varying.update(equation.outputs)
        loop = equation.loop
        twin = graph.loops[loop].twin if loop is not None else None
        inputs = tuple(same.get(value, value) for value in equation.inputs)
        # one stacked tensor sliced in two loops gives two values; all else is in the inputs
        place = (loop if twin is None else twin) if equation.primitive == LOOP_SLICE else None
        key = (id(equation.op), inputs, place)
        by_operand = [(id(equation.op), i, value) for i, value in enumerate(inputs)][::-1]
        if equation.role is not Role.BACKWARD:
            table.setdefault(key, equation.outputs)
            if equation.index in contractions:
                for part in by_operand:
                    table.setdefault(part, equation.outputs)
            continue
        if equation.primitive == "optimization_barrier" and equation.recomputed:
            for output, operand, known in zip(
                equation.outputs, equation.inputs, inputs, strict=True
            ):
                if operand in cotangents:
                    cotangents.add(output)
                else:
                    same[output] = known
            continue
        sliced = equation.primitive == LOOP_SLICE and twin is not None
        again = equation.recomputed or sliced
        if not again and key in table:  # a custom_vjp rule may repeat the forward pass, too
            again = not varying.isdisjoint(equation.inputs)
        if not cotangents.isdisjoint(equation.inputs) or not again:
            cotangents.update(equation.outputs)
            continue
        repeats.add(equation.index)
        contracts = equation.primitive in OPERANDS
        keys = [key, *by_operand] if contracts else [key]
        found = next((table[k] for k in keys if k in table), None)
        if found is None and sliced:
            found = _stacked(graph, inputs[0])
        if found is None and contracts and last is not None:
            later = by_op.get(id(equation.op), [])
            position = bisect.bisect_right(later, last)
            if position < len(later):
                found = graph.equations[later[position]].outputs
        if found is not None:
            same.update(zip(equation.outputs, found, strict=True))
            if contracts:
                last = graph.values[found[0]].producer
    return Recomputed(same, frozenset(repeats))


def _stacked(graph: Graph, value: int) -> tuple[int, ...] | None:
    """What a forward loop stacked into this value, one iteration of it."""
    producer = graph.values[value].producer
    if producer is None or graph.equations[producer].primitive != LOOP_STACK:
        return None
    return graph.equations[producer].inputs


def match_backward(
    graph: Graph,
    contractions: Collection[int],
    recomputed: Recomputed,
    parameters: Collection[int],
) -> dict[int, int]:
    """Backward contraction -> the forward contraction it differentiates or repeats.

    By a shared operand; where that was recomputed beyond recognition, by shapes alone. A slot
    (forward contraction, operand) is taken once, or twice by a product of a tensor with itself.
    It gives the gradient of the other operand, so one that depends on a parameter goes first:
    a product of data, or by a frozen weight, may read the same tensor.
    """
    differentiable = _differentiable(graph, parameters)
    same = recomputed.same
    by_operand: dict[int, list[int]] = {}
    order = sorted(contractions)
    for index in order:
        operands = graph.equations[index].inputs
        for value in dict.fromkeys([*operands, *(_base(graph, v) for v in operands)]):
            by_operand.setdefault(value, []).append(index)
    matched: dict[int, int] = {}
    taken: Counter[tuple[int, object]] = Counter()
    reached = len(graph.equations)

    def find_slots(backward: int, value: int) -> Iterator[tuple[bool, int, object]]:
        """(gives a gradient that is wanted, forward contraction, value), latest first."""
        for forward in reversed(by_operand.get(value, ())):
            operands = graph.equations[forward].inputs
            free = taken[forward, value] < max(1, operands.count(value))
            if forward <= reached and free and _differentiates(graph, backward, forward):
                others = [v for v in operands if value not in (v, _base(graph, v))] or operands
                wanted = not differentiable.isdisjoint(others)
                yield wanted, forward, value
                if wanted:
                    return

    for equation in graph.role(Role.BACKWARD):
        if equation.primitive not in CONTRACTING:
            continue
        if equation.index in recomputed.equations:
            repeated = same.get(equation.outputs[0])
            twin = graph.values[repeated].producer if repeated is not None else None
            if twin is not None and twin in contractions:
                matched[equation.index] = twin
                for value in equation.inputs:  # what differentiates it may read these instead
                    by_operand.setdefault(value, []).append(twin)
            continue
        known = [same.get(v, v) for v in equation.inputs]
        slots: list[tuple[bool, int, object]] = []
        for value in dict.fromkeys([*known, *equation.inputs]):
            slots += find_slots(equation.index, value)
        if not slots:  # a view of an operand is second best: several contractions may share it
            for value in dict.fromkeys(_base(graph, v) for v in known):
                slots += find_slots(equation.index, value)
        best = max(slots, key=lambda slot: slot[:2], default=None)
        slot = best[1:] if best else None
        if slot is None and equation.recomputed:
            slot = _by_shape(graph, equation.index, order[: bisect.bisect(order, reached)], taken)
        if slot is not None:
            matched[equation.index] = reached = slot[0]
            taken[slot] += 1
    return matched


def _differentiable(graph: Graph, parameters: Collection[int]) -> set[int]:
    """The values that depend on a parameter."""
    found = set(parameters)
    for equation in graph.role(Role.FORWARD):
        if equation.primitive != "stop_gradient" and not found.isdisjoint(equation.inputs):
            found.update(equation.outputs)
    return found


def _base(graph: Graph, value: int) -> int:
    """What a value is a view of: a convolution differentiates against a reversed kernel."""
    while True:
        producer = graph.values[value].producer
        if producer is None or graph.equations[producer].primitive not in VIEWS:
            return value
        value = graph.equations[producer].inputs[0]


def _by_shape(
    graph: Graph, backward: int, earlier: list[int], taken: Counter[tuple[int, object]]
) -> tuple[int, object] | None:
    shapes = {graph.values[value].shape for value in graph.equations[backward].inputs}
    for forward in reversed(earlier):
        if _differentiates(graph, backward, forward):
            free = [graph.values[value].shape for value in graph.equations[forward].inputs]
            for shape in free:
                if shape in shapes and taken[forward, shape] < free.count(shape):
                    return forward, shape
    return None


def _differentiates(graph: Graph, backward: int, forward: int) -> bool:
    """One operand of the backward contraction has as many elements as the forward result."""
    kind = graph.equations[backward].primitive
    if (kind in SCATTERS) != (graph.equations[forward].primitive == "gather"):
        return False
    count = math.prod(graph.values[graph.equations[forward].outputs[0]].shape)
    inputs = graph.equations[backward].inputs
    return any(math.prod(graph.values[v].shape) == count for v in inputs)
