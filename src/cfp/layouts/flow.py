"""Layouts from the start of the step to its end, and what the compiler must be told.

A result lies as its block asks; else as its operands do, a split winning over whole. Where an
operation sums over a split dim it leaves partial sums. Those of a contraction are completed into
what the readers want if they agree (a reduce-scatter), else whole (an all-reduce).

What is placed before a block's seed (a norm) stays as it comes while that costs nothing. Where it
would sum over a split dim, its tensor is brought into the layout the block wants first, once.

The compiler is told: operands and results of contractions, completed sums, what leaves a block,
what goes round a loop. It fills in the rest, which has little choice left.
"""

from __future__ import annotations

from collections.abc import Mapping

from cfp.blocks import Blocks
from cfp.blocks.backward import CONTRACTING
from cfp.layouts.asked import Asked
from cfp.layouts.carry import OPEN, PartialLayout, splits
from cfp.layouts.layout import Layout, fits
from cfp.layouts.want import Wants
from cfp.trace import LOOP_ENTER, LOOP_EXIT, LOOP_PRIMITIVES, Equation, Graph, Role


class Flow:
    """`known` leaves sums open; `decide` completes them and returns the constraints."""

    def __init__(
        self,
        graph: Graph,
        blocks: Blocks,
        asked: Asked,
        wants: Wants,
        settled: Mapping[int, PartialLayout],
    ) -> None:
        self.graph = graph
        self.blocks = blocks
        self.asked = asked
        self.wants = wants
        self.carry = wants.carry
        self.layouts: dict[int, PartialLayout] = dict(settled)
        self.values: dict[int, Layout] = {}
        self.uses: dict[tuple[int, int], Layout] = {}
        self.sums: dict[int, Layout] = {}
        self._placed = {e: block.index for block in blocks.blocks for e in block.prologue}
        self._member = {e: block.index for block in blocks.blocks for e in block.members}
        self._entries: dict[tuple[int, int], PartialLayout] = {}
        self._enter_of = {exit_: enter for loop in graph.loops for enter, exit_ in loop.carries}
        self._exit_of = {enter: exit_ for exit_, enter in self._enter_of.items()}

    def known(self) -> dict[int, PartialLayout]:
        for equation in self.graph.equations:
            reads = [self._layout(value) for value in equation.inputs]
            if equation.role is Role.UPDATE:  # gradients come as parameters and state lie
                reads = [
                    self.carry.open if self._from_gradient(value) else layout
                    for value, layout in zip(equation.inputs, reads, strict=True)
                ]
            for j, value in enumerate(equation.outputs):
                self.layouts[value] = self._result(equation, j, reads)[0]
        return self.layouts

    def decide(self) -> tuple[dict[int, Layout], dict[tuple[int, int], Layout]]:
        for equation in self.graph.equations:
            reads = [self._read(equation, i) for i in range(len(equation.inputs))]
            for j, value in enumerate(equation.outputs):
                layout, partial = self._result(equation, j, reads)
                if any(partial):
                    layout = self._complete(equation, value, layout, partial)
                self.layouts[value] = layout
                if any(partial) or self._matters(equation, value):
                    self._tell(value, layout)
            self._tell_operands(equation)
        return self.values, self.uses

    def _from_gradient(self, value: int) -> bool:
        producer = self.graph.values[value].producer
        return producer is not None and self.graph.equations[producer].role is not Role.UPDATE

    # --- layouts -------------------------------------------------------------------------

    def _layout(self, value: int) -> PartialLayout:
        return self.layouts.get(value, self.carry.open)

    def _read(self, equation: Equation, operand: int) -> PartialLayout:
        """A tensor as this equation reads it."""
        value = equation.inputs[operand]
        layout = self._layout(value)
        if value in self.graph.constants:
            return layout
        asked = self.asked.operands.get((equation.index, operand))
        if asked is not None:
            self.uses[equation.index, operand] = asked
            return asked
        block = self._placed.get(equation.index)
        if block is not None and any(map(splits, layout)):
            entry = self._entry(value, block, layout)
            if entry != layout:
                self.uses[equation.index, operand] = self.carry.settle(entry)
            return entry
        return layout

    def _result(
        self, equation: Equation, result: int, reads: list[PartialLayout]
    ) -> tuple[PartialLayout, tuple[bool, ...]]:
        """A result's layout and, per axis, whether it is a partial sum that nothing asked for."""
        op, value = equation.op, equation.outputs[result]
        axes = range(len(self.carry.mesh_shape))
        none = (False,) * len(axes)
        if op.map is None:
            return self.carry.open, none
        twin = self.blocks.recomputed.same.get(value)
        if twin is not None and twin in self.layouts:
            same = self.layouts[twin]
            if self.graph.values[twin].shape == self.graph.values[value].shape:
                return same, none
        if equation.primitive == LOOP_ENTER:
            return self._round(equation, reads[0]), none
        if equation.primitive == LOOP_EXIT:
            enter = self.graph.equations[self._enter_of[equation.index]]
            return self._layout(enter.outputs[0]), none
        asked = self.asked.values.get(value, self.carry.open)
        given = [
            (i, layout)
            for i, layout in enumerate(reads)
            if equation.inputs[i] not in self.graph.constants
        ]
        moved = [self.carry.to_result(op, i, result, layout) for i, layout in given]
        sums = [self.carry.reduces(op, i, layout) for i, layout in enumerate(reads)]
        found: list[int | None] = []
        partial: list[bool] = []
        for axis in axes:
            dim = asked[axis]
            summed = any(flags[axis] for flags in sums)
            if dim == OPEN:
                options = [layout[axis] for layout in moved]
                all_whole = bool(given) and all(layout[axis] is None for _, layout in given)
                rest = None if all_whole or None in options else OPEN
                dim = next((d for d in options if splits(d)), rest)
            found.append(dim)
            partial.append(summed and not splits(dim))
        layout = self.carry.fit(tuple(found), self.graph.values[value].shape)
        return (
            tuple(OPEN if on else dim for on, dim in zip(partial, layout, strict=True)),
            tuple(partial),
        )

    def _complete(
        self, equation: Equation, value: int, layout: PartialLayout, partial: tuple[bool, ...]
    ) -> PartialLayout:
        """Partial sums are completed whole and go on as they are wanted: a compiler with a
        reduce-scatter makes one of the two. Those of a plain reduction are small and stay whole:
        to scatter them the compiler would exchange the reduction's larger operand."""
        shape = self.graph.values[value].shape
        summed = found = self.carry.settle(layout)
        if equation.primitive not in CONTRACTING:
            return found
        for axis, dim in enumerate(self.wants.want[value].agreed_dims()):
            if partial[axis] and splits(dim):
                more = (*found[:axis], dim, *found[axis + 1 :])
                found = more if fits(more, shape, self.carry.mesh_shape) else found
        if found != summed:
            self.sums[value] = summed
        return found

    def _round(self, enter: Equation, first: PartialLayout) -> PartialLayout:
        """A loop's carry: as the body leaves it, else as it is wanted, else as it comes in."""
        (value,) = enter.outputs
        left = self.graph.equations[self._exit_of[enter.index]].inputs[0]
        asked = self.asked.values.get(left, self.carry.open)
        want = self.wants.want.get(value, self.wants.nothing).agreed_dims()
        layout = tuple(
            next((dim for dim in options if dim != OPEN), None)
            for options in zip(asked, want, first, strict=True)
        )
        return self.carry.fit(layout, self.graph.values[value].shape)

    def _entry(self, value: int, block: int, layout: PartialLayout) -> PartialLayout:
        """How a tensor enters what is placed before a block."""
        producer = self.graph.values[value].producer
        if producer is not None and self._placed.get(producer) == block:
            return layout
        key = (value, block)
        if key not in self._entries:
            summed = self._summed(value, block, layout)
            found = layout
            if any(summed):
                opinions = [
                    self.wants.opinion(reader, i)
                    for reader in self.graph.readers[value]
                    if self._placed.get(reader) == block
                    for i, v in enumerate(self.graph.equations[reader].inputs)
                    if v == value
                ]
                want = self.wants.merge(opinions).agreed_dims()
                found = tuple(
                    want[axis] if on and want[axis] != OPEN else dim
                    for axis, (dim, on) in enumerate(zip(layout, summed, strict=True))
                )
                found = self.carry.fit(found, self.graph.values[value].shape)
            self._entries[key] = found
        return self._entries[key]

    def _summed(self, value: int, block: int, layout: PartialLayout) -> list[bool]:
        """Per axis: something placed before the block sums over the dim that the axis splits."""
        summed = [False] * len(layout)
        reached = {value: layout}
        for index in self.blocks.blocks[block].prologue:
            equation = self.graph.equations[index]
            for i, operand in enumerate(equation.inputs):
                if operand not in reached:
                    continue
                flags = self.carry.reduces(equation.op, i, reached[operand])
                summed = [a or b for a, b in zip(summed, flags, strict=True)]
                for j, output in enumerate(equation.outputs):
                    reached.setdefault(
                        output, self.carry.to_result(equation.op, i, j, reached[operand])
                    )
        return summed

    # --- what the compiler is told -------------------------------------------------------

    def _matters(self, equation: Equation, value: int) -> bool:
        if equation.index in self.asked.results or (equation.index, 0) in self.asked.operands:
            return True
        if equation.primitive in LOOP_PRIMITIVES:
            return any(map(splits, self._layout(value)))
        block = self._member.get(equation.index)
        if block is None:
            return False
        return value in self.graph.returned or any(
            self._member.get(reader) != block for reader in self.graph.readers[value]
        )

    def _tell(self, value: int, layout: PartialLayout) -> None:
        if OPEN not in layout and self.graph.values[value].shape:
            self.values[value] = layout

    def _tell_operands(self, equation: Equation) -> None:
        """Operands that come split otherwise than a result needs them, and what a loop hands on."""
        op = equation.op
        if op.map is None or equation.role is Role.UPDATE:
            return
        if equation.primitive == LOOP_EXIT:
            carried = self.carry.settle(self._layout(equation.outputs[0]))
            if self.graph.values[equation.inputs[0]].shape:
                self.uses[equation.index, 0] = carried
            return
        for i, value in enumerate(equation.inputs):
            if (equation.index, i) in self.uses or value in self.graph.constants:
                continue
            layout = self._layout(value)
            if OPEN in layout:
                continue
            needed = self.carry.to_operand(op, 0, i, self._layout(equation.outputs[0]))
            changed = tuple(
                n if splits(n) and splits(dim) and n != dim else dim
                for n, dim in zip(needed, layout, strict=True)
            )
            if changed != layout:
                fitted = self.carry.fit(changed, self.graph.values[value].shape)
                self.uses[equation.index, i] = self.carry.settle(fitted)
