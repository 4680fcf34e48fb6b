"""The last pass: every tensor gets its layout, and the compiler is told what matters.

Partial sums of a contraction are completed into what the readers want if they agree (a
reduce-scatter), else whole (an all-reduce); in a split stream, into rows.

What is placed before a block's seed (a norm) stays as it comes while that costs nothing. Where it
would sum over a split dim, its tensor is brought into the layout the block wants first, once.

The compiler is told all that is known: what is left to it, it may lay out in one way in a program
that is measured alone and in another in a step, where other neighbours spread how they lie. It is
not told of the update, which follows its arguments, nor of what is made of nothing (masks drawn at
random), which each device may make its part of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cfp.blocks.backward import CONTRACTING
from cfp.layouts.carry import OPEN, PartialLayout, splits
from cfp.layouts.forward_sweep import ForwardSweep
from cfp.layouts.layout import Layout, fits
from cfp.trace import LOOP_EXIT, LOOP_PRIMITIVES, Equation, Role, is_key

RANDOM = ("random_", "threefry")  # how the primitives that draw are called


@dataclass
class Decision(ForwardSweep):
    """`values`, `uses` and `sums` as in `Layouts`, after `run`."""

    values: dict[int, Layout] = field(default_factory=dict)
    uses: dict[tuple[int, int], Layout] = field(default_factory=dict)
    sums: dict[int, Layout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        blocks = self.blocks.blocks
        self._placed = {e: block.index for block in blocks for e in block.prologue}
        self._before: dict[tuple[int, int], PartialLayout] = {}
        self._data = {v for v in self.graph.inputs if self._is_tensor(v)}

    def run(self) -> None:
        for equation in self.graph.equations:
            drawn = equation.primitive.startswith(RANDOM)
            if not drawn and not self._data.isdisjoint(equation.inputs):
                self._data.update(equation.outputs)
            reads = [self._read(equation, i) for i in range(len(equation.inputs))]
            for j, value in enumerate(equation.outputs):
                layout, partial = self.result(equation, j, reads)
                if any(partial):
                    layout = self._complete(equation, value, layout, partial)
                elif value in self.asked.streams:
                    self._scatter(equation, value, layout, reads)
                elif (twin := self.blocks.recomputed.same.get(value)) in self.sums:
                    self.sums[value] = self.sums[twin]
                self.layouts[value] = layout
                if any(partial) or self._matters(equation, value):
                    self._tell(value, layout)
            self._tell_operands(equation)

    def _read(self, equation: Equation, operand: int) -> PartialLayout:
        """Returns a tensor as this equation reads it, after what the compiler is told."""
        value = equation.inputs[operand]
        layout = self.given(equation, operand)
        if value in self.graph.constants:
            return layout
        if layout != self.layout_of(value):
            self.uses[equation.index, operand] = self.carry.settle(layout)
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

    def _complete(
        self, equation: Equation, value: int, layout: PartialLayout, partial: tuple[bool, ...]
    ) -> PartialLayout:
        """Partial sums are completed whole and go on as they are wanted: a compiler with a
        reduce-scatter makes one of the two. The sums of a plain reduction are small and stay
        whole: to scatter them the compiler would exchange the reduction's larger operand."""
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

    def _scatter(
        self, equation: Equation, value: int, layout: PartialLayout, reads: list[PartialLayout]
    ) -> None:
        """Completes the partial sums of a split stream whole, before they go on split by rows."""
        flags = [self.carry.reduces(equation.op, i, read) for i, read in enumerate(reads)]
        summed = [any(found) for found in zip(*flags, strict=True)]
        if any(summed):
            settled = self.carry.settle(layout)
            self.sums[value] = tuple(
                None if on else dim for on, dim in zip(summed, settled, strict=True)
            )

    def _entry(self, value: int, block: int, layout: PartialLayout) -> PartialLayout:
        """Returns how a tensor enters what is placed before a block."""
        producer = self.graph.values[value].producer
        if producer is not None and self._placed.get(producer) == block:
            return layout
        key = (value, block)
        if key not in self._before:
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
            self._before[key] = found
        return self._before[key]

    def _summed(self, value: int, block: int, layout: PartialLayout) -> list[bool]:
        """Returns for each axis whether something placed before the block sums over the dim that
        the axis splits."""
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

    def _is_tensor(self, value: int) -> bool:
        found = self.graph.values[value]
        return bool(found.shape) and not is_key(found.dtype)

    def _matters(self, equation: Equation, value: int) -> bool:
        if equation.index in self.asked.results or (equation.index, 0) in self.asked.operands:
            return True
        if equation.primitive in LOOP_PRIMITIVES:
            return any(map(splits, self.layout_of(value)))
        return equation.role is not Role.UPDATE and value in self._data

    def _tell(self, value: int, layout: PartialLayout) -> None:
        if OPEN not in layout and self.graph.values[value].shape:
            self.values[value] = layout

    def _tell_operands(self, equation: Equation) -> None:
        """Tells the compiler of operands that come split otherwise than a result needs them, and of
        what a loop hands on.

        A scale that lies split (by FSDP, or a pin) is read whole by activations that are split in
        another dim: left to itself, the compiler may move the activations to the scale instead.
        """
        op = equation.op
        if op.map is None or equation.role is Role.UPDATE or not equation.outputs:
            return
        if equation.primitive == LOOP_EXIT:
            carried = self.carry.settle(self.layout_of(equation.outputs[0]))
            if self.graph.values[equation.inputs[0]].shape:
                self.uses[equation.index, 0] = carried
            return
        for i, value in enumerate(equation.inputs):
            if (equation.index, i) in self.uses or value in self.graph.constants:
                continue
            layout = self.layout_of(value)
            if OPEN in layout or not any(map(splits, layout)):
                continue
            feeds = op.map.feeds
            fed = [j for j in range(len(equation.outputs)) if feeds is None or i in feeds[j]]
            if not fed:
                continue
            made = self.layout_of(equation.outputs[fed[0]])
            needed = self.carry.to_operand(op, fed[0], i, made)
            sums = self.carry.reduces(op, i, layout)
            found = list(layout)
            for axis, dim in enumerate(layout):
                if splits(dim) and splits(made[axis]) and needed[axis] != dim and not sums[axis]:
                    found[axis] = needed[axis] if splits(needed[axis]) else None
            if tuple(found) != layout:
                self.uses[equation.index, i] = self.carry.fit(
                    tuple(found), self.graph.values[value].shape
                )
