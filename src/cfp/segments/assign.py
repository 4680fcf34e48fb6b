"""Which segment every equation belongs to.

Forward equations follow their block. A backward equation belongs with the forward equations
whose derivative it is part of. It shows by what it reads: a contraction is matched to its
forward contraction; any other equation reads residuals, and belongs with the latest segment that
touches them forward and is not after the cotangents it reads. So the assignment only ever moves
towards the start, as the backward pass does, and a mask that all layers share pulls nothing to
the first of them. What is recomputed goes where it is read first. What only completes the gradient
of a parameter (the sum over the batch, for a bias) goes where the parameter is.

An update equation belongs with the one segment whose parameters it serves, or whose gradients it
depends on. What depends on several and serves several (a global norm) is the shared epilogue; what
one segment contributes to it (its sum of squares) runs with that segment's backward part. A tensor
that serves no parameter goes where the others are that it is made of: moments of gradients that are
kept as they were if any gradient is infinite depend on all segments, and are of one. What
depends on arguments alone and serves several (a step counter, a schedule) runs before everything.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from cfp.blocks import Blocks
from cfp.segments.segment import Phase
from cfp.trace import LOOP_ENTER, LOOP_EXIT, LOOP_PRIMITIVES, Equation, Graph, Role

Home = dict[int, tuple[int | None, Phase]]


def assign(graph: Graph, blocks: Blocks, segment_of_block: Sequence[int]) -> Home:
    """Returns a dict: equation -> (segment, phase); the segment is None for what the update
    shares."""
    forward = {equation: segment_of_block[block] for equation, block in blocks.home.items()}
    parameter_home = {
        value: min(readers)
        for value in blocks.parameters
        if (readers := [forward[r] for r in graph.readers[value] if r in forward])
    }
    serves = _serves(graph, parameter_home)
    backward = _Backward(graph, blocks, forward, segment_of_block).run(serves)
    home: Home = {e: (segment, Phase.FORWARD) for e, segment in forward.items()}
    home |= {e: (segment, Phase.BACKWARD) for e, segment in backward.items()}
    return home | _assign_update(graph, backward, serves)


class _Backward:
    def __init__(
        self,
        graph: Graph,
        blocks: Blocks,
        forward: Mapping[int, int],
        segment_of_block: Sequence[int],
    ) -> None:
        self.graph = graph
        self.blocks = blocks
        self.forward = forward
        self.last = max(segment_of_block)
        self.home: dict[int, int] = {}
        self._touching: dict[int, list[int]] = {}
        self._varying = _varying(graph)
        self._ranges = self._loop_ranges(segment_of_block)

    def run(self, serves: Mapping[int, int]) -> dict[int, int]:
        repeated = self.blocks.recomputed.equations
        for equation in self.graph.role(Role.BACKWARD):
            if equation.index not in repeated:
                self.home[equation.index] = self._clamp(equation, self._segment(equation))
        for equation in reversed(self.graph.equations):
            if equation.index in repeated or _is_barrier(equation):
                readers = [
                    self.home[reader]
                    for value in equation.outputs
                    for reader in self.graph.readers[value]
                    if reader in self.home
                ]
                self.home[equation.index] = self._clamp(equation, max(readers, default=self.last))
        return self.home | self._gradients(serves)

    def _segment(self, equation: Equation) -> int:
        graph = self.graph
        ceiling = self.last
        residuals: list[int] = []
        for value in equation.inputs:
            producer = graph.values[value].producer
            if producer is not None and producer in self.home:
                ceiling = min(ceiling, self.home[producer])
            elif value in self._varying:
                residuals.append(self.blocks.recomputed.same.get(value, value))
        matched = self.blocks.matched.get(equation.index)
        if matched is not None:
            return min(ceiling, self.forward[matched])
        segment = ceiling
        for value in residuals:
            touching = self._touched_by(value)
            position = bisect.bisect_right(touching, ceiling)
            if position:
                segment = min(segment, touching[position - 1])
        return segment

    def _gradients(self, serves: Mapping[int, int]) -> dict[int, int]:
        """Returns a dict: equation -> segment, for equations that make a gradient out of cotangents
        alone, where its parameter is of an earlier segment than those. What adds up over a loop
        stays with the loop."""
        graph = self.graph
        moved: dict[int, int] = {}
        for equation in reversed(list(graph.role(Role.BACKWARD))):
            index = equation.index
            operands = [value for value in equation.inputs if value not in graph.constants]
            if (
                equation.primitive in (LOOP_ENTER, LOOP_EXIT)
                or index in self.blocks.matched
                or any(graph.values[value].producer not in self.home for value in operands)
            ):
                continue
            readers = {reader for value in equation.outputs for reader in graph.readers[value]}
            if not all(reader in serves or reader in moved for reader in readers):
                continue
            masks = [1 << moved[r] if r in moved else serves[r] for r in readers]
            served = reduce(and_, (mask for mask in masks if mask), -1)  # a norm serves all or none
            if served > 0 and served.bit_count() == 1:
                segment = self._clamp(equation, served.bit_length() - 1)
                if segment < self.home[index]:
                    moved[index] = segment
        return moved

    def _touched_by(self, value: int) -> list[int]:
        """Returns the segments whose forward part makes or reads the value, in order. Where it
        enters a loop says nothing: a sum of gradients enters the loop over micro-batches before
        everything."""
        known = self._touching.get(value)
        if known is None:
            equations = list(self.graph.readers[value])
            producer = self.graph.values[value].producer
            if producer is not None and self.graph.equations[producer].primitive != LOOP_ENTER:
                equations.append(producer)
            known = sorted({self.forward[e] for e in equations if e in self.forward})
            self._touching[value] = known
        return known

    def _loop_ranges(self, segment_of_block: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Returns for each loop the first and last segment of its body (of its forward twin's
        body)."""
        ranges: dict[int, tuple[int, int]] = {}
        for block in self.blocks.blocks:
            segment = segment_of_block[block.index]
            for loop in self.graph.loop_path(block.loop):
                first, last = ranges.get(loop, (segment, segment))
                ranges[loop] = (min(first, segment), max(last, segment))
        for loop_record in self.graph.loops:
            if loop_record.twin is not None and loop_record.twin in ranges:
                ranges[loop_record.index] = ranges[loop_record.twin]
        return ranges

    def _clamp(self, equation: Equation, segment: int) -> int:
        """Returns the segment nearest to `segment` in an equation's loop: an equation in a loop
        stays with a segment of that loop."""
        if equation.loop is None or equation.loop not in self._ranges:
            return segment
        first, last = self._ranges[equation.loop]
        return max(first, min(last, segment))


def _varying(graph: Graph) -> set[int]:
    """Returns the values that depend on an argument: an equal constant in another layer says
    nothing."""
    varying = set(graph.inputs)
    for equation in graph.equations:
        if equation.primitive in LOOP_PRIMITIVES or not varying.isdisjoint(equation.inputs):
            varying.update(equation.outputs)
    return varying


def _is_barrier(equation: Equation) -> bool:
    return equation.recomputed and equation.primitive == "optimization_barrier"


def _serves(graph: Graph, parameter_home: Mapping[int, int]) -> dict[int, int]:
    """Returns a dict: update equation -> the segments whose parameters it helps to update, as a bit
    mask."""
    serves: dict[int, int] = {}
    for equation in reversed(list(graph.role(Role.UPDATE))):
        mask = 0
        for value in equation.inputs:
            if value in parameter_home:
                mask |= 1 << parameter_home[value]
        for value in equation.outputs:
            for reader in graph.readers[value]:
                mask |= serves.get(reader, 0)
        serves[equation.index] = mask
    return serves


def _assign_update(graph: Graph, backward: Mapping[int, int], serves: Mapping[int, int]) -> Home:
    """Returns the homes of update equations, by the segments that each serves and those it depends
    on, bit masks both."""
    update = list(graph.role(Role.UPDATE))
    depends: dict[int, int] = {}
    for equation in update:
        mask = 0
        for value in equation.inputs:
            producer = graph.values[value].producer
            if producer is not None:
                grad = backward.get(producer)
                mask |= depends.get(producer, 0) if grad is None else 1 << grad
        depends[equation.index] = mask
    owner: dict[int, int | None] = {}
    for equation in update:
        down, up = depends[equation.index], serves[equation.index]
        single = next((mask for mask in (up, down) if mask.bit_count() == 1), 0)
        owner[equation.index] = single.bit_length() - 1 if single else None
        if not single and not up and any(graph.values[v].shape for v in equation.outputs):
            made = {graph.values[value].producer for value in equation.inputs}
            found = {owner.get(p, backward.get(p)) for p in made if p is not None} - {None}
            owner[equation.index] = found.pop() if len(found) == 1 else None
    return _phases(graph, update, owner, depends)


def _phases(
    graph: Graph,
    update: Sequence[Equation],
    owner: Mapping[int, int | None],
    depends: Mapping[int, int],
) -> Home:
    """Splits what is shared, and what that needs of a segment, from the segment's own update."""
    from_arguments = _from_arguments(graph, update)
    early = _ancestors(graph, update, {e for e in from_arguments if owner[e] is None}, owner)
    needed = _ancestors(graph, update, {e for e in owner if owner[e] is None}, owner)
    late: set[int] = set()  # what the epilogue computes
    home: Home = {}
    for equation in update:
        producers = {graph.values[value].producer for value in equation.inputs}
        segment = owner[equation.index]
        if equation.index in early:
            home[equation.index] = (None, Phase.SCHEDULE)
        elif segment is None or (
            equation.index in needed
            and (depends[equation.index].bit_count() > 1 or not late.isdisjoint(producers))
        ):
            late.add(equation.index)
            home[equation.index] = (None, Phase.EPILOGUE)
        elif equation.index in needed:
            home[equation.index] = (segment, Phase.BACKWARD)
        else:  # updates run in order: after any other segment's that it reads
            read = (home[p] for p in producers if p is not None and p in home)
            known = [s for s, phase in read if phase is Phase.UPDATE and s is not None]
            home[equation.index] = (max([segment, *known]), Phase.UPDATE)
    return home


def _from_arguments(graph: Graph, update: Sequence[Equation]) -> set[int]:
    """Returns the update equations that depend on no forward or backward equation."""
    found: set[int] = set()
    for equation in update:
        producers = (graph.values[value].producer for value in equation.inputs)
        if all(producer is None or producer in found for producer in producers):
            found.add(equation.index)
    return found


def _ancestors(
    graph: Graph, update: Sequence[Equation], wanted: set[int], among: Mapping[int, object]
) -> set[int]:
    """Returns `wanted` and every update equation that it depends on."""
    found = set(wanted)
    for equation in reversed(update):
        if equation.index in found:
            producers = {graph.values[value].producer for value in equation.inputs}
            found.update(p for p in producers if p is not None and p in among)
    return found
