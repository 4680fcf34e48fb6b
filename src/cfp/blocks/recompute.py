"""What the backward pass computes again, recognised by value numbering.

Same operation on the same values gives the same value. That finds what `jax.checkpoint` and
custom derivative rules recompute, and what a backward loop slices of a forward loop's stacks.
Autodiff may rewrite what it recomputes (a softmax by its derivative rule), and value numbering
loses the thread there. A recomputed contraction picks it up again: it does the same operation on
one of the same operands or, failing that, is the next of its kind, for recomputation repeats the
forward pass in order.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cfp.blocks.operands import OPERANDS
from cfp.trace import LOOP_SLICE, LOOP_STACK, Equation, Graph, Op, Role

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What the backward pass computes again.

    `same` maps a value of the backward pass to the forward value it repeats, where known;
    `equations` are those that repeat the forward pass rather than carry a cotangent.
    """

    same: Mapping[int, int]
    equations: frozenset[int]


def find_recomputed(graph: Graph, contractions: Collection[int]) -> Recomputed:
    """Returns what is computed again, found in one sweep: forward equations fill the table,
    backward ones are looked up in it."""
    numbering = _Numbering(graph, contractions)
    for equation in graph.equations:
        if equation.role is Role.BACKWARD:
            numbering.look_up(equation)
        else:
            numbering.enter(equation)
    return Recomputed(numbering.same, frozenset(numbering.repeats))


class _Numbering:
    def __init__(self, graph: Graph, contractions: Collection[int]) -> None:
        self.graph = graph
        self.contractions = contractions
        self.same: dict[int, int] = {}
        self.repeats: set[int] = set()
        self._table: dict[Key, tuple[int, ...]] = {}
        self._cotangents: set[int] = set()
        self._varying = set(graph.inputs)  # depends on an argument
        self._last: int | None = None  # the forward twin of the last repeated contraction
        self._by_op: dict[Op, list[int]] = {}
        for index in sorted(contractions):
            self._by_op.setdefault(graph.equations[index].op, []).append(index)

    def enter(self, equation: Equation) -> None:
        self._note_varying(equation)
        self._table.setdefault(self._key(equation), equation.outputs)
        if equation.index in self.contractions:
            for key in self._operand_keys(equation):
                self._table.setdefault(key, equation.outputs)

    def look_up(self, equation: Equation) -> None:
        self._note_varying(equation)
        if equation.primitive == "optimization_barrier" and equation.recomputed:
            self._pass_through(equation)
        elif not self._cotangents.isdisjoint(equation.inputs) or not self._repeats(equation):
            self._cotangents.update(equation.outputs)
        else:
            self.repeats.add(equation.index)
            found = self._find(equation)
            if found is not None:
                self.same.update(zip(equation.outputs, found, strict=True))
                if equation.primitive in OPERANDS:
                    self._last = self.graph.values[found[0]].producer

    def _note_varying(self, equation: Equation) -> None:
        if not self._varying.isdisjoint(equation.inputs):
            self._varying.update(equation.outputs)

    def _inputs(self, equation: Equation) -> tuple[int, ...]:
        return tuple(self.same.get(value, value) for value in equation.inputs)

    def _key(self, equation: Equation) -> Key:
        # one stacked tensor sliced in two loops gives two values; all else is in the inputs
        place: int | None = None
        if equation.primitive == LOOP_SLICE:
            twin = self._twin(equation)
            place = equation.loop if twin is None else twin
        return equation.op, self._inputs(equation), place

    def _operand_keys(self, equation: Equation) -> list[Key]:
        keys: list[Key] = [(equation.op, i, v) for i, v in enumerate(self._inputs(equation))]
        return keys[::-1]

    def _twin(self, equation: Equation) -> int | None:
        return None if equation.loop is None else self.graph.loops[equation.loop].twin

    def _is_backward_slice(self, equation: Equation) -> bool:
        return equation.primitive == LOOP_SLICE and self._twin(equation) is not None

    def _pass_through(self, barrier: Equation) -> None:
        known = self._inputs(barrier)
        for output, operand, value in zip(barrier.outputs, barrier.inputs, known, strict=True):
            if operand in self._cotangents:
                self._cotangents.add(output)
            else:
                self.same[output] = value

    def _repeats(self, equation: Equation) -> bool:
        if equation.recomputed or self._is_backward_slice(equation):
            return True
        # a custom derivative rule may repeat the forward pass; a constant alone says nothing
        known = self._key(equation) in self._table
        return known and not self._varying.isdisjoint(equation.inputs)

    def _find(self, equation: Equation) -> tuple[int, ...] | None:
        """Returns the forward outputs that this equation computes again."""
        contracts = equation.primitive in OPERANDS
        keys = [self._key(equation), *(self._operand_keys(equation) if contracts else ())]
        for key in keys:
            if key in self._table:
                return self._table[key]
        if self._is_backward_slice(equation):
            return self._stacked(self._inputs(equation)[0])
        if contracts and self._last is not None:
            later = self._by_op.get(equation.op, [])
            position = bisect.bisect_right(later, self._last)
            if position < len(later):
                return self.graph.equations[later[position]].outputs
        return None

    def _stacked(self, value: int) -> tuple[int, ...] | None:
        """Returns the values of one iteration that a forward loop stacked into this value."""
        producer = self.graph.values[value].producer
        if producer is None or self.graph.equations[producer].primitive != LOOP_STACK:
            return None
        return self.graph.equations[producer].inputs
