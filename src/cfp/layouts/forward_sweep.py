"""Layouts from the start of the step to its end.

A result lies as its block asks; else as its operands do, a split winning over whole. Where an
operation sums over a split dim it leaves partial sums, which are left open here and completed in
`decide`. What goes round a loop lies alike at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from cfp.blocks import Blocks
from cfp.layouts.backward_sweep import Wants
from cfp.layouts.block_layouts import BlockLayouts
from cfp.layouts.carry import OPEN, PartialLayout, splits
from cfp.trace import LOOP_ENTER, LOOP_EXIT, LOOP_SLICE, Equation, Graph, Role


@dataclass
class ForwardSweep:
    """`layouts` holds what is known so far, at first how arguments lie."""

    graph: Graph
    blocks: Blocks
    asked: BlockLayouts
    wants: Wants
    layouts: dict[int, PartialLayout]

    def __post_init__(self) -> None:
        self.carry = self.wants.carry
        self._stored = set(self.blocks.parameters)
        carries = [pair for loop in self.graph.loops for pair in loop.carries]
        self._enter_of = {exit_: enter for enter, exit_ in carries}
        self._exit_of = dict(carries)
        self._none = (False,) * len(self.carry.mesh_shape)

    def known(self) -> dict[int, PartialLayout]:
        for equation in self.graph.equations:
            if equation.role is Role.UPDATE:  # gradients come as parameters and state lie
                reads = [
                    self.carry.open if self._from_gradient(value) else self.layout_of(value)
                    for value in equation.inputs
                ]
            else:
                reads = [self.given(equation, i) for i in range(len(equation.inputs))]
            for j, value in enumerate(equation.outputs):
                self.layouts[value] = self.result(equation, j, reads)[0]
        return self.layouts

    def _from_gradient(self, value: int) -> bool:
        producer = self.graph.values[value].producer
        return producer is not None and self.graph.equations[producer].role is not Role.UPDATE

    def layout_of(self, value: int) -> PartialLayout:
        return self.layouts.get(value, self.carry.open)

    def given(self, equation: Equation, operand: int) -> PartialLayout:
        """Returns a tensor as it comes. A parameter may lie otherwise than it is wanted (by FSDP,
        or a pin): it comes as wanted, or its layout would spread over the activations it meets. A
        stacked one does so inside its loop, a slice at a time."""
        value = equation.inputs[operand]
        layout = self.layout_of(value)
        if value not in self._stored or equation.role is Role.UPDATE:
            return layout
        if equation.primitive == LOOP_SLICE:
            self._stored.update(equation.outputs)
            return layout
        if not any(map(splits, layout)):
            return layout
        want = self.wants.opinion(equation.index, operand).dims
        found = tuple(
            dim if not splits(dim) or w == dim else w if splits(w) else None
            for dim, w in zip(layout, want, strict=True)
        )
        return self.carry.fit(found, self.graph.values[value].shape)

    def result(
        self, equation: Equation, result: int, reads: list[PartialLayout]
    ) -> tuple[PartialLayout, tuple[bool, ...]]:
        """Returns a result's layout and, per axis, whether it is a partial sum that nothing asked
        for."""
        value = equation.outputs[result]
        if equation.op.map is None:
            return self.carry.open, self._none
        twin = self.blocks.recomputed.same.get(value)
        if twin is not None and twin in self.layouts:
            same = self.layouts[twin]
            if self.graph.values[twin].shape == self.graph.values[value].shape:
                return same, self._none
        if equation.primitive == LOOP_ENTER:
            return self._round(equation, reads[0]), self._none
        if equation.primitive == LOOP_EXIT:
            enter = self.graph.equations[self._enter_of[equation.index]]
            return self.layout_of(enter.outputs[0]), self._none
        asked = self.asked.values.get(value, self.carry.open)
        constant = tuple(operand in self.graph.constants for operand in equation.inputs)
        return self.carry.join(equation.op, result, asked, tuple(reads), constant)

    def _round(self, enter: Equation, first: PartialLayout) -> PartialLayout:
        """Returns a loop's carry: as the body leaves it, else as it is wanted, else as it comes
        in."""
        (value,) = enter.outputs
        left = self.graph.equations[self._exit_of[enter.index]].inputs[0]
        asked = self.asked.values.get(left, self.carry.open)
        want = self.wants.want.get(value, self.wants.nothing).agreed_dims()
        layout = tuple(
            next((dim for dim in options if dim != OPEN), None)
            for options in zip(asked, want, first, strict=True)
        )
        return self.carry.fit(layout, self.graph.values[value].shape)
