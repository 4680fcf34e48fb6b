"""Backward contractions find the forward contraction they differentiate.

They share an operand with it, and the other operand is the cotangent of its result. The
backward pass visits the forward one in reverse, so the match only ever moves towards the start;
that settles weights used in several places.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from cfp.blocks.operands import OPERANDS
from cfp.blocks.recompute import Recomputed
from cfp.trace import Graph, Role

# the backward pass of a lookup adds into the table instead of looking up
SCATTERS = frozenset({"scatter-add", "scatter_add"})
CONTRACTING = frozenset(OPERANDS) | SCATTERS
VIEWS = frozenset({"rev", "transpose", "reshape", "convert_element_type", "copy", "squeeze"})


def match_backward(
    graph: Graph,
    contractions: Collection[int],
    recomputed: Recomputed,
    parameters: Collection[int],
) -> dict[int, int]:
    """Returns a dict: backward contraction -> the forward contraction it differentiates or repeats.

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

    def find_slots(
        backward: int, value: int, fits: Callable[[Graph, int, int], bool]
    ) -> Iterator[tuple[bool, int, object]]:
        """Yields (whether it gives a gradient that is wanted, forward contraction, value), latest
        first."""
        for forward in reversed(by_operand.get(value, ())):
            operands = graph.equations[forward].inputs
            free = taken[forward, value] < max(1, operands.count(value))
            if forward <= reached and free and fits(graph, backward, forward):
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
        exact = dict.fromkeys([*known, *equation.inputs])
        views = dict.fromkeys(_base(graph, v) for v in known)
        slots: list[tuple[bool, int, object]] = []
        for values, fits in (
            (exact, _differentiates),
            (views, _differentiates),  # second best: several contractions may share a view
            (exact, _same_sort),  # a cotangent that is the same for all rows is smaller
        ):
            if not slots:
                slots = [s for value in values for s in find_slots(equation.index, value, fits)]
        best = max(slots, key=lambda slot: slot[:2], default=None)
        slot = best[1:] if best else None
        if slot is None and equation.recomputed:
            slot = _by_shape(graph, equation.index, order[: bisect.bisect(order, reached)], taken)
        if slot is not None:
            matched[equation.index] = reached = slot[0]
            taken[slot] += 1
    return matched


def _differentiable(graph: Graph, parameters: Collection[int]) -> set[int]:
    """Returns the values that depend on a parameter."""
    found = set(parameters)
    for equation in graph.role(Role.FORWARD):
        if equation.primitive != "stop_gradient" and not found.isdisjoint(equation.inputs):
            found.update(equation.outputs)
    return found


def _base(graph: Graph, value: int) -> int:
    """Returns what a value is a view of: a convolution differentiates against a reversed kernel."""
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


def _same_sort(graph: Graph, backward: int, forward: int) -> bool:
    """Returns whether both are lookups or both products: lookups are differentiated by adding into
    a table, products by products."""
    scatters = graph.equations[backward].primitive in SCATTERS
    return scatters == (graph.equations[forward].primitive == "gather")


def _differentiates(graph: Graph, backward: int, forward: int) -> bool:
    """Returns whether one operand of the backward contraction has as many elements as the forward
    result."""
    count = math.prod(graph.values[graph.equations[forward].outputs[0]].shape)
    inputs = graph.equations[backward].inputs
    return _same_sort(graph, backward, forward) and any(
        math.prod(graph.values[v].shape) == count for v in inputs
    )
