"""What the readers of a tensor want of it: one sweep from the end of the step to its start.

A contraction wants its operands as its strategy says. Any other equation passes on what is wanted
of its results, and what the operands it is joined with are known to be: where x is split, x + y
wants y split alike. Opinions carry the work (FLOPs) behind them; those with none (what the update
would like of a gradient) count only where there is no other, and end where a gradient is summed: no
activation is split for them, nor a norm before it. Where readers disagree, the heaviest opinion
counts for an argument, which can lie in one way only; a tensor with partial sums is then completed
whole. What is in a split stream is wanted by rows, which outweighs any work (`STREAM`): a reader
that wants it otherwise gathers it for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cfp.blocks.contraction import flops
from cfp.layouts.block_layouts import BlockLayouts
from cfp.layouts.carry import OPEN, Carry, PartialLayout, splits
from cfp.trace import LOOP_ENTER, LOOP_EXIT, Graph, Op, Role

STREAM = math.inf  # the weight of what a split stream wants


@dataclass(frozen=True, slots=True)
class Want:
    """Per axis: the dim wanted, the work behind it, and whether all readers agree."""

    dims: PartialLayout
    weights: tuple[float, ...]
    agreed: tuple[bool, ...]

    def agreed_dims(self) -> PartialLayout:
        """Returns the wanted dims, whole where readers disagree."""
        return tuple(
            dim if agreed else None for dim, agreed in zip(self.dims, self.agreed, strict=True)
        )


class Wants:
    """`want[value]` after `sweep`. `known` are the layouts that other equations rely on."""

    def __init__(
        self,
        graph: Graph,
        asked: BlockLayouts,
        carry: Carry,
        parameters: frozenset[int],
    ) -> None:
        self.graph = graph
        self.parameters = parameters
        self.asked = asked
        self.carry = carry
        self.want: dict[int, Want] = {}
        self.known: Mapping[int, PartialLayout] = asked.values
        axes = len(carry.mesh_shape)
        self.nothing = Want(carry.open, (0.0,) * axes, (True,) * axes)
        self._other_end = {}
        for loop in graph.loops:
            for enter, exit_ in loop.carries:
                enter_out, exit_out = (
                    graph.equations[enter].outputs[0],
                    graph.equations[exit_].outputs[0],
                )
                self._other_end[enter] = exit_out
                self._other_end[exit_] = enter_out

    def sweep(self, known: Mapping[int, PartialLayout], outputs: Mapping[int, Want]) -> None:
        """Collects the wants of every value, last equation first.

        `outputs` is what is wanted of the step's results. The wants of an earlier sweep stand in
        where a loop's carry has not been reached.
        """
        self.known = known
        opinions: dict[int, list[Want]] = {value: [want] for value, want in outputs.items()}
        for value, rows in self.asked.streams.items():
            opinions.setdefault(value, []).append(self._of_stream(rows))
        for equation in reversed(self.graph.equations):
            for value in equation.outputs:
                self.want[value] = self.merge(opinions.pop(value, []))
            updates = equation.role is Role.UPDATE
            for i, value in enumerate(equation.inputs):
                # optimizer state follows its parameter, never the other way round
                said = value not in self.graph.constants
                if said and not (updates and value in self.parameters):
                    opinions.setdefault(value, []).append(self.opinion(equation.index, i))
        for value in self.graph.inputs:
            self.want[value] = self.merge(opinions.pop(value, []))

    def _of_stream(self, rows: PartialLayout) -> Want:
        weights = tuple(0.0 if dim == OPEN else STREAM for dim in rows)
        return Want(rows, weights, (True,) * len(rows))

    def opinion(self, index: int, operand: int) -> Want:
        """Returns what one equation wants of one operand."""
        equation = self.graph.equations[index]
        op = equation.op
        asked = self.asked.operands.get((index, operand))
        if asked is not None:
            axes = len(self.carry.mesh_shape)
            weight = 1.0 + flops(op) * self.graph.times(equation.loop)
            return Want(asked, (weight,) * axes, (True,) * axes)
        if op.map is None:
            return self.nothing
        results = tuple(
            (self.want.get(value, self.nothing), self.asked.values.get(value, self.carry.open))
            for value in equation.outputs
        )
        if equation.primitive in (LOOP_ENTER, LOOP_EXIT):
            other = self.want.get(self._other_end[index], self.nothing)
        else:
            other = None
        siblings = tuple(
            None if i == operand or value in self.graph.constants else self.known.get(value)
            for i, value in enumerate(equation.inputs)
        )
        settled = equation.role is Role.UPDATE  # whole where the parameter is whole
        known = self.carry.remembered(op)
        key = ("want", operand, results, other, siblings, settled)
        found: Want | None = known.get(key)
        if found is None:
            best = self._from_results(op, operand, results, other)
            dims = self._beside(op, operand, list(best.dims), siblings, settled)
            found = known[key] = Want(dims, best.weights, best.agreed)
        return found

    def _from_results(
        self,
        op: Op,
        operand: int,
        results: tuple[tuple[Want, PartialLayout], ...],
        other: Want | None,
    ) -> Want:
        """Returns what is wanted of an operand, by what is wanted of each result and asked of it;
        `other` is a loop's other end."""
        wants: list[Want] = []
        summed = op.primitive.startswith("reduce_")
        for j, (want, asked) in enumerate(results):
            dims = tuple(
                a if a != OPEN else OPEN if summed and weight == 0 else w
                for a, w, weight in zip(asked, want.dims, want.weights, strict=True)
            )
            moved = self.carry.to_operand(op, j, operand, dims)
            wants.append(Want(moved, want.weights, want.agreed))
        if other is not None:
            wants.append(other)
        return wants[0] if len(wants) == 1 else self.merge(wants)

    def _beside(
        self,
        op: Op,
        operand: int,
        dims: list[int | None],
        siblings: tuple[PartialLayout | None, ...],
        settled: bool,
    ) -> PartialLayout:
        """Returns the layout with the splits of the operands that it is joined with, by their
        numbers."""
        for i, layout in enumerate(siblings):
            if layout is None:
                continue
            for axis, dim in enumerate(self.carry.across(op, i, operand, layout)):
                free = dims[axis] == OPEN if settled else not splits(dims[axis])
                if splits(dim) and free:
                    dims[axis] = dim
        return tuple(dims)

    def merge(self, wants: Iterable[Want]) -> Want:
        """Returns what many want. Where a stream says something, only streams count; else opinions
        with work behind them, where there are any."""
        wants = list(wants)
        if not wants:
            return self.nothing
        if len(wants) == 1:
            return wants[0]
        dims: list[int | None] = []
        weights: list[float] = []
        agreed: list[bool] = []
        for axis in range(len(self.carry.mesh_shape)):
            said = [want for want in wants if want.dims[axis] != OPEN]
            most = max((want.weights[axis] for want in said), default=0.0)
            least = STREAM if most == STREAM else math.ulp(0.0) if most > 0 else 0.0
            found: dict[int | None, float] = {}
            sure = True
            for want in said:
                if want.weights[axis] >= least:
                    dim = want.dims[axis]
                    found[dim] = found.get(dim, 0.0) + want.weights[axis]
                    sure = sure and want.agreed[axis]
            best = max(found, key=lambda dim: (found[dim], splits(dim)), default=OPEN)
            dims.append(best)
            weights.append(found.get(best, 0.0))
            agreed.append(sure and len(found) <= 1)
        return Want(tuple(dims), tuple(weights), tuple(agreed))
