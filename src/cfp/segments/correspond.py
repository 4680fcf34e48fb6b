"""Which equation of an occurrence is which equation of its kind.

A kind is measured as the programs of one occurrence, its representative. Any other occurrence has
the same contractions, one for one and in order: that is what their common fingerprint says. From
these pairs both occurrences are walked outwards:

    operands and results   of two equations that are a pair are pairs of values
    producers              of a pair of values are a pair, where they do the same operation
    readers                of a pair of values are a pair, where they do the same operation on the
                           same operand, and there is one on each side

Where a value has several such readers on each side, they are paired in order once nothing else
tells them apart. What an occurrence has besides its kind (the first layer may compute what all
layers share) is paired with nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cfp.blocks import Blocks
from cfp.blocks.build import is_contraction
from cfp.segments.program import Cutter
from cfp.segments.segment import Segments
from cfp.trace import Equation, Graph


@dataclass(frozen=True, slots=True)
class Correspondence:
    """The counterparts in one occurrence of the representative's equations and values, all by
    their numbers in the step. Two values of the representative may be one in the occurrence."""

    equations: Mapping[int, int]
    values: Mapping[int, int]

    def show(self, graph: Graph) -> str:
        """Returns the pairs of equations, one a line."""
        return "\n".join(
            f"{one} is {other}: {graph.equations[one].primitive}"
            for one, other in sorted(self.equations.items())
        )


def correspond(
    graph: Graph, blocks: Blocks, segments: Segments, cutter: Cutter
) -> tuple[Correspondence, ...]:
    """Returns the correspondence of every segment with its kind's representative."""
    contractions = [_contractions(graph, blocks, one.blocks) for one in segments.segments]
    equations = [cutter.equations(one.index) for one in segments.segments]
    found = []
    for segment in segments.segments:
        like = segments.kinds[segment.kind].representative
        if segment.index == like:
            found.append(_itself(graph, equations[like]))
            continue
        walk = _OccurrenceWalk(graph, equations[like], equations[segment.index])
        walk.start(contractions[like], contractions[segment.index])
        found.append(walk.finish())
    return tuple(found)


def _itself(graph: Graph, equations: Iterable[int]) -> Correspondence:
    own = {e: e for e in equations}
    values = {v for e in own for v in (*graph.equations[e].inputs, *graph.equations[e].outputs)}
    return Correspondence(own, {v: v for v in values})


def _contractions(graph: Graph, blocks: Blocks, indices: Iterable[int]) -> list[Equation]:
    """Returns the forward contractions of a run of blocks, in the order of their fingerprints."""
    return [
        graph.equations[member]
        for block in (blocks.blocks[index] for index in indices)
        for member in sorted(block.members)
        if is_contraction(graph.equations[member], block.seeds)
    ]


class _OccurrenceWalk:
    """One occurrence beside the representative."""

    def __init__(self, graph: Graph, ours: Iterable[int], theirs: Iterable[int]) -> None:
        self.graph = graph
        self._inside = frozenset(ours), frozenset(theirs)
        self._equations: dict[int, int] = {}
        self._taken: set[int] = set()
        self._values: dict[int, int] = {}
        self._todo: deque[tuple[Equation, Equation]] = deque()
        self._unsure: dict[tuple[int, int], None] = {}  # pairs of values with several readers

    def start(self, ours: list[Equation], theirs: list[Equation]) -> None:
        for one, other in zip(ours, theirs, strict=True):
            self._pair(one, other)

    def finish(self) -> Correspondence:
        while True:
            while self._todo:
                self._spread(*self._todo.popleft())
            if not self._settle_readers():
                return Correspondence(self._equations, self._values)

    def _pair(self, one: Equation, other: Equation) -> bool:
        """Returns whether the two are a pair now: they are inside, alike and in no other pair, and
        their results are in none with others."""
        inside = one.index in self._inside[0] and other.index in self._inside[1]
        free = one.index not in self._equations and other.index not in self._taken
        if not (inside and free and one.op is other.op):
            return False
        results = zip(one.outputs, other.outputs, strict=True)
        if any(self._values.get(a, b) != b for a, b in results):
            return False
        self._equations[one.index] = other.index
        self._taken.add(other.index)
        self._todo.append((one, other))
        return True

    def _spread(self, one: Equation, other: Equation) -> None:
        for value, counterpart in zip(
            (*one.outputs, *one.inputs), (*other.outputs, *other.inputs), strict=True
        ):
            if value not in self._values:
                self._values[value] = counterpart
                self._pair_producers(value, counterpart)
                self._pair_readers(value, counterpart)

    def _pair_producers(self, value: int, counterpart: int) -> None:
        ours, theirs = self.graph.values[value].producer, self.graph.values[counterpart].producer
        if ours is None or theirs is None:
            return
        one, other = self.graph.equations[ours], self.graph.equations[theirs]
        if one.op is other.op and one.outputs.index(value) == other.outputs.index(counterpart):
            self._pair(one, other)

    def _pair_readers(self, value: int, counterpart: int) -> None:
        for ours, theirs in self._free_readers(value, counterpart):
            if len(ours) == len(theirs) == 1:
                self._pair(ours[0], theirs[0])
            else:
                self._unsure[value, counterpart] = None

    def _settle_readers(self) -> bool:
        """Pairs what is left, first what has become sure, else the readers of one value in order;
        returns whether it found any."""
        for in_order in (False, True):
            found = False
            for value, counterpart in list(self._unsure):
                groups = list(self._free_readers(value, counterpart))
                if not groups:
                    del self._unsure[value, counterpart]
                for ours, theirs in groups:
                    if len(ours) == len(theirs) and (in_order or len(ours) == 1):
                        found |= self._pair(ours[0], theirs[0])
                if found and in_order:  # this pair may tell others apart
                    return True
            if found:
                return True
        return False

    def _free_readers(
        self, value: int, counterpart: int
    ) -> Iterator[tuple[list[Equation], list[Equation]]]:
        """Yields the readers on both sides that are in no pair yet, by what they do to which
        operand."""
        sides = (
            (value, self._inside[0], self._equations),
            (counterpart, self._inside[1], self._taken),
        )
        groups: dict[tuple[object, int], tuple[list[Equation], list[Equation]]] = {}
        for side, (read, inside, paired) in enumerate(sides):
            for reader in self.graph.readers[read]:
                if reader in inside and reader not in paired:
                    equation = self.graph.equations[reader]
                    key = (equation.op, equation.inputs.index(read))
                    groups.setdefault(key, ([], []))[side].append(equation)
        return (group for group in groups.values() if all(group))
