"""The layouts of measured programs, put in the place of what they are programs of.

A step is made of occurrences of programs whose layouts are known. Every equation that has a
counterpart in one of them reads and makes its tensors as that does; nothing is worked out again.

    makes    a result lies as the counterpart's, and the compiler is told what it was told there
    reads    an operand comes as the counterpart's does. Where it was made otherwise, by another
             occurrence, it is brought there once for all that the occurrence reads of it
    loops    what goes round a loop lies as the body takes it in; a slice lies as its stack, less
             the dim that the loop runs over
    again    what a program computes again, its occurrence computes again
    others   an equation without a counterpart (what the update shares, a trivial operation that
             one occurrence has and its kind has not) lies as its operands do
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cfp.layouts.carry import Carry
from cfp.layouts.layout import Entry, Layout, Layouts, Shape, halfway, made_otherwise
from cfp.trace import LOOP_ENTER, LOOP_EXIT, LOOP_PRIMITIVES, Equation, Graph, Role, is_key
from cfp.trace.recomputation import Recomputation

Operand = tuple[int, int]  # an equation, and the number of its operand


@dataclass(frozen=True, slots=True)
class Placed:
    """A measured program at a place in the step: `equations[i]` is its equation i there, None where
    this occurrence has no such equation."""

    graph: Graph
    layouts: Layouts
    equations: Sequence[int | None]


def substitute(
    graph: Graph,
    mesh_shape: Shape,
    placed: Sequence[Placed],
    homes: Mapping[int, Layout],
    feedback: Mapping[int, int],
) -> Layouts:
    """Returns the layouts of the graph.

    `homes` says how arguments and what goes round loops lie, by value; where it says nothing, they
    lie as they are first read. `feedback` maps results to the arguments they replace in the
    next step, whose layout they have, both by position.
    """
    return _Substitution(graph, mesh_shape, placed, homes).run(feedback)


class _Substitution:
    def __init__(
        self,
        graph: Graph,
        mesh_shape: Shape,
        placed: Sequence[Placed],
        homes: Mapping[int, Layout],
    ) -> None:
        self.graph = graph
        self._homes = homes
        self.carry = Carry(mesh_shape)
        self._whole: Layout = (None,) * len(mesh_shape)
        self._reads: dict[Operand, tuple[int, Layout]] = {}  # the reading occurrence, and how
        self._leaves: dict[int, Layout] = {}  # how a result goes on, where not as it is made
        self.lies: dict[int, Layout] = {}
        self.values: dict[int, Layout] = {}
        self.uses: dict[Operand, Layout] = {}
        self.sums: dict[int, Layout] = {}
        self.via: dict[Operand, Layout] = {}
        self.again: list[Recomputation] = []
        for number, one in enumerate(placed):
            self._place(number, one)
            self.again += [some.at(one.equations) for some in one.layouts.again]
        carries = [pair for loop in graph.loops for pair in loop.carries]
        self._enter_of = {exit_: graph.equations[enter] for enter, exit_ in carries}
        self._arguments = {value for value in graph.inputs if self._is_tensor(value)}
        for value in graph.inputs:
            self.lies[value] = self._home(value) or self._whole

    def run(self, feedback: Mapping[int, int]) -> Layouts:
        for equation in self.graph.equations:
            if equation.primitive in LOOP_PRIMITIVES:
                self._cross_loop(equation)
            else:
                self._lay_rest(equation)
        entries = self._entries()
        inputs = tuple(self.lies[value] for value in self.graph.inputs)
        outputs = tuple(
            inputs[feedback[i]] if i in feedback else self.lies.get(value, self._whole)
            for i, value in enumerate(self.graph.outputs)
        )
        return Layouts(
            inputs=inputs,
            outputs=outputs,
            values={**made_otherwise(self.graph, outputs, self.lies), **self.values},
            uses=self.uses,
            sums=self.sums,
            via=self.via,
            entries=entries,
            known=self.lies,
            again=tuple(self.again),
        )

    def _place(self, number: int, one: Placed) -> None:
        """Takes over what a program's equations read and make. Where several programs have an
        equation (a mask that follows from constants), the first occurrence decides how it is
        made."""
        lie, theirs = one.layouts, one.graph
        there = {e: at for e, at in enumerate(one.equations) if at is not None}
        for e, at in there.items():
            equation, counterpart = theirs.equations[e], self.graph.equations[at]
            for i, value in enumerate(equation.inputs):
                if value in lie.known and (at, i) not in self._reads:
                    self._reads[at, i] = number, lie.known[value]
                    if (e, i) in lie.uses:
                        self.uses[at, i] = lie.uses[e, i]
                    if (e, i) in lie.via:
                        self.via[at, i] = lie.via[e, i]
            for value, target in zip(equation.outputs, counterpart.outputs, strict=True):
                if target not in self.lies and value in lie.known:
                    self.lies[target] = lie.known[value]
                    if value in lie.values:
                        self.values[target] = lie.values[value]
                    if value in lie.sums:
                        self.sums[target] = lie.sums[value]
        for position, value in enumerate(theirs.outputs):
            producer = theirs.values[value].producer
            if producer in there and lie.outputs[position] != lie.known[value]:
                result = theirs.equations[producer].outputs.index(value)
                target = self.graph.equations[there[producer]].outputs[result]
                self._leaves[target] = lie.outputs[position]

    def _home(self, value: int) -> Layout | None:
        """Returns how a tensor lies at its home, else as it is first read, through loops too."""
        return self._homes.get(value) or next(self._all_reads(value), None)

    def _all_reads(self, value: int) -> Iterator[Layout]:
        for reader in self.graph.readers[value]:
            equation = self.graph.equations[reader]
            if equation.primitive in LOOP_PRIMITIVES and equation.primitive != LOOP_EXIT:
                for layout in self._all_reads(equation.outputs[0]):
                    moved = self.carry.to_operand(equation.op, 0, 0, layout)
                    yield self.carry.settle(moved)
                continue
            found = self._reads.get((reader, equation.inputs.index(value)))
            if found is not None:
                yield found[1]

    def _cross_loop(self, equation: Equation) -> None:
        """Lays out tensors that enter, leave and are carried by loops; the compiler is told of
        those that are split, and of both ends of what is carried."""
        (source,), (value,) = equation.inputs, equation.outputs
        leaves = self._leaves.get(source)
        comes = leaves or self.lies.get(source, self._whole)
        shaped = self._is_tensor(source)
        if equation.primitive == LOOP_EXIT:
            layout = self.lies[self._enter_of[equation.index].outputs[0]]
            if shaped:
                self.uses[equation.index, 0] = layout
        elif equation.primitive == LOOP_ENTER:
            layout = self._home(value) or comes
        else:
            moved = self.carry.to_result(equation.op, 0, 0, comes)
            layout = self.carry.settle(self.carry.fit(moved, self.graph.values[value].shape))
            if leaves is not None and shaped:
                self.uses[equation.index, 0] = leaves
        self.lies[value] = layout
        if self._is_tensor(value) and any(dim is not None for dim in layout):
            self.values[value] = layout

    def _lay_rest(self, equation: Equation) -> None:
        """Gives results that no measured program has the layout of the operands, their sums
        completed. The compiler is told, as it is in measured programs, where it was told of an
        operand."""
        if all(value in self.lies for value in equation.outputs):
            return
        tell = equation.role is not Role.UPDATE and any(
            value in self.values or value in self._arguments for value in equation.inputs
        )
        reads = tuple(self.lies.get(value, self._whole) for value in equation.inputs)
        constant = tuple(value in self.graph.constants for value in equation.inputs)
        for result, value in enumerate(equation.outputs):
            if equation.op.map is None:
                self.lies.setdefault(value, self._whole)
                continue
            layout, _ = self.carry.join(equation.op, result, self.carry.open, reads, constant)
            if value not in self.lies:
                self.lies[value] = self.carry.settle(layout)
                if tell and self._is_tensor(value):
                    self.values[value] = self.lies[value]

    def _entries(self) -> dict[Operand, Entry]:
        """Returns what occurrences read otherwise than it was made, or than it lies as an
        argument."""
        numbers: dict[tuple[int, int, Layout], int] = {}
        found: dict[Operand, Entry] = {}
        for (equation, operand), (occurrence, layout) in sorted(self._reads.items()):
            value = self.graph.equations[equation].inputs[operand]
            lies = self.lies.get(value)
            if lies is None or lies == layout or not self._is_tensor(value):
                continue
            number = numbers.setdefault((occurrence, value, layout), len(numbers))
            found[equation, operand] = Entry(number, layout, halfway(lies, layout))
        return found

    def _is_tensor(self, value: int) -> bool:
        found = self.graph.values[value]
        return bool(found.shape) and not is_key(found.dtype)
