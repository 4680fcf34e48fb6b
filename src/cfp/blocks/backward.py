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
from dataclasses import dataclass, field

from cfp.blocks.operands import OPERANDS
from cfp.blocks.recompute import Recomputed
from cfp.trace import Equation, Graph, Role

# the backward pass of a lookup adds into the table instead of looking up
SCATTERS = frozenset({"scatter-add", "scatter_add"})
CONTRACTING = frozenset(OPERANDS) | SCATTERS
VIEWS = frozenset({"rev", "transpose", "reshape", "convert_element_type", "copy", "squeeze"})

Slot = tuple[int, object]  # a forward contraction, and the value or the shape of an operand of it


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
    matching = _Matching(graph, recomputed, contractions, _differentiable(graph, parameters))
    for equation in graph.role(Role.BACKWARD):
        if equation.primitive not in CONTRACTING:
            continue
        if equation.index in recomputed.equations:
            matching.repeat(equation)
        else:
            matching.match(equation)
    return matching.matched


@dataclass(slots=True)
class _Matching:
    """The matches so far, which `match_backward` returns. `reached` is the earliest
    forward contraction that was matched; `by_operand` maps a value to the contractions that
    read it or a view of it, and `taken` counts the uses of each slot."""

    graph: Graph
    recomputed: Recomputed
    contractions: Collection[int]  # the forward ones
    differentiable: set[int]
    matched: dict[int, int] = field(default_factory=dict)
    by_operand: dict[int, list[int]] = field(default_factory=dict)
    taken: Counter[Slot] = field(default_factory=Counter)
    order: list[int] = field(init=False)
    reached: int = field(init=False)

    def __post_init__(self) -> None:
        self.order = sorted(self.contractions)
        self.reached = len(self.graph.equations)
        for index in self.order:
            operands = self.graph.equations[index].inputs
            for value in dict.fromkeys([*operands, *(_base(self.graph, v) for v in operands)]):
                self.by_operand.setdefault(value, []).append(index)

    def repeat(self, equation: Equation) -> None:
        """Matches a contraction that is computed again with the one that it repeats."""
        repeated = self.recomputed.same.get(equation.outputs[0])
        twin = self.graph.values[repeated].producer if repeated is not None else None
        if twin is not None and twin in self.contractions:
            self.matched[equation.index] = twin
            for value in equation.inputs:  # what differentiates it may read these instead
                self.by_operand.setdefault(value, []).append(twin)

    def match(self, equation: Equation) -> None:
        """Matches a contraction with the one it differentiates, if there is a slot for it."""
        slot = self._by_operand(equation)
        if slot is None and equation.recomputed:
            earlier = self.order[: bisect.bisect(self.order, self.reached)]
            slot = _by_shape(self.graph, equation.index, earlier, self.taken)
        if slot is not None:
            self.matched[equation.index] = self.reached = slot[0]
            self.taken[slot] += 1

    def _by_operand(self, equation: Equation) -> Slot | None:
        """Returns the best slot of an operand that both share, or of a view that both have."""
        known = [self.recomputed.same.get(v, v) for v in equation.inputs]
        exact = dict.fromkeys([*known, *equation.inputs])
        views = dict.fromkeys(_base(self.graph, v) for v in known)
        for values, fits in (
            (exact, _differentiates),
            (views, _differentiates),  # second best: several contractions may share a view
            (exact, _same_sort),  # a cotangent that is the same for all rows is smaller
        ):
            slots = [s for value in values for s in self._slots(equation.index, value, fits)]
            if slots:
                return max(slots, key=lambda slot: slot[:2])[1:]
        return None

    def _slots(
        self, backward: int, value: int, fits: Callable[[Graph, int, int], bool]
    ) -> Iterator[tuple[bool, int, object]]:
        """Yields (whether it gives a gradient that is wanted, forward contraction, value), latest
        first."""
        for forward in reversed(self.by_operand.get(value, ())):
            operands = self.graph.equations[forward].inputs
            free = self.taken[forward, value] < max(1, operands.count(value))
            if forward <= self.reached and free and fits(self.graph, backward, forward):
                others = [v for v in operands if value not in (v, _base(self.graph, v))] or operands
                wanted = not self.differentiable.isdisjoint(others)
                yield wanted, forward, value
                if wanted:
                    return


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


def _by_shape(graph: Graph, backward: int, earlier: list[int], taken: Counter[Slot]) -> Slot | None:
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
