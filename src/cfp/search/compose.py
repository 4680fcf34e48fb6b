"""From measurements to the problem of choosing: one node per segment, one option per way to run it.

time      what the segment adds to a step, and what goes round its loop
edges     reshardings of all tensors that cross between two segments, either way
kept      what of a segment's memory adds up over the step, by `profile.peak`
scratch   what of it one segment at a time needs, by the same model
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cfp.analysis import Analysis
from cfp.layouts import Layout
from cfp.profile import Boundary, Crossing, Option, Profile, SegmentProfile
from cfp.profile.peak import (
    Needs,
    besides_bytes,
    kept_and_scratch,
    needs_of,
    peak_bytes,
    places,
    shared_arguments,
)
from cfp.profile.programs.boundary import End
from cfp.search.problem import Node, Problem

Array = npt.NDArray[np.float64]
Allowed = Callable[[int, Option], bool]  # (segment, option)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """A problem, and the options that its choices stand for. `options[i]` are what the choices of
    node i count through, and `needs[i]` the memory of each; `kinds[i]` is its kind."""

    problem: Problem
    kinds: tuple[int, ...]
    options: tuple[tuple[Option, ...], ...]
    needs: tuple[Needs, ...]

    def chosen(self, choice: Sequence[int]) -> tuple[Option, ...]:
        """Returns an option per segment."""
        return tuple(found[at] for found, at in zip(self.options, choice, strict=True))

    def memory_bytes(self, choice: Sequence[int]) -> int:
        """Returns what a device needs at the peak; the problem's figure is a bound of it."""
        return peak_bytes(self.needs, choice)


def compose(analysis: Analysis, profile: Profile, allowed: Allowed | None = None) -> Composition:
    """Returns the problem of all options that ran, or of those that are `allowed`."""
    return _Composer(analysis, profile, allowed or (lambda segment, option: True)).compose()


def _different(found: SegmentProfile) -> list[Option]:
    """Returns the options that ran; of options that have the same layouts everywhere, the first."""
    first: dict[str, Option] = {}
    for option in found.costs:
        first.setdefault(str(found.layouts[option]), option)
    return list(first.values())


class _Composer:
    def __init__(self, analysis: Analysis, profile: Profile, allowed: Allowed) -> None:
        self.analysis = analysis
        self.profile = profile
        self.kinds = tuple(segment.kind for segment in analysis.segments)
        self.options = self._options(allowed)
        graph = analysis.graph
        self.donated = {graph.inputs[position] for position in graph.donated}
        self._own: dict[int, list[Crossing]] = {}
        self._between: dict[tuple[int, int], list[Crossing]] = {}
        for crossing in profile.crossings:
            ends = crossing.source, crossing.target
            if ends[0] == ends[1]:
                self._own.setdefault(ends[0], []).append(crossing)
            else:
                self._between.setdefault((min(ends), max(ends)), []).append(crossing)
        self._shared = shared_arguments(profile.crossings)
        self._besides = besides_bytes(analysis, profile.interfaces.homes)
        self._known: dict[object, int] = {}
        self._distinct_needs: list[Needs] = []
        self._crossed: dict[object, int] = {}
        self._matrices: list[Array] = []

    def compose(self) -> Composition:
        which = [self._needs(i) for i in range(len(self.kinds))]
        needs = tuple(self._distinct_needs[number] for number in which)
        nodes, node_numbers = self._nodes(needs, which)
        edges, edge_numbers = {}, {}
        for (i, j), crossings in sorted(self._between.items()):
            number = self._edge(i, j, crossings)
            if self._matrices[number].any():
                edges[i, j] = self._matrices[number]
                edge_numbers[i, j] = number
        problem = Problem(nodes, edges, node_numbers, edge_numbers)
        return Composition(problem, self.kinds, self.options, needs)

    def _options(self, allowed: Allowed) -> tuple[tuple[Option, ...], ...]:
        different = [_different(found) for found in self.profile.segments]
        return tuple(
            tuple(option for option in different[kind] if allowed(segment, option))
            for segment, kind in enumerate(self.kinds)
        )

    def _nodes(
        self, needs: Sequence[Needs], which: Sequence[int]
    ) -> tuple[tuple[Node, ...], tuple[int, ...]]:
        """Returns a node for each segment, and its number: segments that need and cost the same
        share a node. `which` are the numbers of the needs."""
        known: dict[object, int] = {}
        made: list[Node] = []
        numbers = []
        for i, (need, place) in enumerate(zip(needs, places(needs), strict=True)):
            own = tuple((c.boundary, c.times) for c in self._own.get(i, ()))
            key = (which[i], own, place)
            if key not in known:
                known[key] = len(made)
                kept, scratch = kept_and_scratch(need, place)
                made.append(Node(self._times(i, own), np.maximum(kept, 0), scratch))
            numbers.append(known[key])
        return tuple(made[number] for number in numbers), tuple(numbers)

    def _times(self, i: int, own: Sequence[tuple[Boundary, int]]) -> Array:
        costs = self.profile.segments[self.kinds[i]].costs
        return np.array(
            [
                costs[option].time_s
                + sum(times * self._reshard(b, option, option) for b, times in own)
                for option in self.options[i]
            ]
        )

    def _needs(self, i: int) -> int:
        """Returns the number of the needs of a segment, in `_distinct_needs`."""
        shared = self._shared.get(i, ())
        besides = 0 if i else self._besides  # it is no matter which segment has them
        key = (self.kinds[i], self.options[i], shared, besides)
        if key not in self._known:
            self._known[key] = len(self._distinct_needs)
            found = self.profile.segments[self.kinds[i]]
            needs = needs_of(
                found.kind,
                [(found.costs[o].memory, found.layouts[o]) for o in self.options[i]],
                donated=self.donated,
                shared=shared,
                mesh_shape=self.analysis.mesh_shape,
            )
            self._distinct_needs.append(replace(needs, stored=needs.stored + besides))
        return self._known[key]

    def _edge(self, i: int, j: int, crossings: Sequence[Crossing]) -> int:
        """Returns the number, in `_matrices`, of the seconds for every option of i with every
        option of j."""
        key = (
            self.options[i],
            self.options[j],
            tuple((c.boundary, c.times, c.source == i) for c in crossings),
        )
        if key not in self._crossed:
            total = np.zeros((len(self.options[i]), len(self.options[j])))
            for crossing in crossings:
                forward = crossing.source == i
                ends = (i, j) if forward else (j, i)
                table = self._table(crossing.boundary, *(self.options[end] for end in ends))
                total += crossing.times * (table if forward else table.T)
            self._crossed[key] = len(self._matrices)
            self._matrices.append(total)
        return self._crossed[key]

    def _table(
        self, boundary: Boundary, sources: Sequence[Option], targets: Sequence[Option]
    ) -> Array:
        """Returns the seconds by option of both ends; options with the same layout at the boundary
        share a row or column."""
        rows, left = self._by_layout(boundary.source, sources)
        columns, right = self._by_layout(boundary.target, targets)
        small = np.array([[self._reshard(boundary, a, b) for b in right] for a in left])
        return small[np.ix_(rows, columns)]

    def _by_layout(self, end: End, options: Sequence[Option]) -> tuple[list[int], list[Option]]:
        """Returns which of the layouts there each option has, and an option for each layout."""
        layouts = self.profile.segments[end.kind].layouts
        number: dict[Layout, int] = {}
        first: list[Option] = []
        which = []
        for option in options:
            layout = end.layout(layouts[option])
            if layout not in number:
                number[layout] = len(number)
                first.append(option)
            which.append(number[layout])
        return which, first

    def _reshard(self, boundary: Boundary, source: Option, target: Option) -> float:
        seconds = self.profile.resharding_s(boundary, source, target)
        return math.inf if seconds is None else seconds
