"""From measurements to the problem of choosing: one node per segment, one option per way to run it.

time      what the segment adds to a step, and what goes round its loop
edges     reshardings of all tensors that cross between two segments, either way
kept      parameters, optimizer state, and what of activations and gradients adds up (`peak`). What
          the step does not donate it has twice. An argument that several segments read counts
          where it is at home.
scratch   the rest of what the compiler says; one segment at a time needs it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from cfp.analysis import Analysis
from cfp.layouts import Layout, local_shape
from cfp.profile import Boundary, Crossing, Option, Profile, SegmentProfile
from cfp.profile.boundary import End
from cfp.search.peak import Needs, kept_and_scratch, peak_bytes, places
from cfp.search.problem import Node, Problem

Array = npt.NDArray[np.float64]
Allowed = Callable[[int, Option], bool]  # (segment, option)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """`options[i]` are what the choices of node i count through, and `needs[i]` the memory of each;
    `kinds[i]` is its kind."""

    problem: Problem
    kinds: tuple[int, ...]
    options: tuple[tuple[Option, ...], ...]
    needs: tuple[Needs, ...]

    def chosen(self, choice: Sequence[int]) -> tuple[Option, ...]:
        """An option per segment."""
        return tuple(found[at] for found, at in zip(self.options, choice, strict=True))

    def memory_bytes(self, choice: Sequence[int]) -> int:
        """What a device needs at the peak; the problem's figure is a bound of it."""
        return peak_bytes(self.needs, choice)


def compose(analysis: Analysis, profile: Profile, allowed: Allowed | None = None) -> Composition:
    """All options that ran, or those of them that are `allowed`."""
    return _Composer(analysis, profile, allowed or (lambda segment, option: True)).compose()


def _different(found: SegmentProfile) -> list[Option]:
    """The options that ran; of those that lie alike in everything, the first."""
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
        self._known: dict[object, Needs] = {}
        self._matrices: dict[object, Array] = {}

    def compose(self) -> Composition:
        needs = tuple(self._needs(i) for i in range(len(self.kinds)))
        edges = {}
        for (i, j), crossings in sorted(self._between.items()):
            matrix = self._edge(i, j, crossings)
            if matrix.any():
                edges[i, j] = matrix
        return Composition(Problem(self._nodes(needs), edges), self.kinds, self.options, needs)

    def _options(self, allowed: Allowed) -> tuple[tuple[Option, ...], ...]:
        """Equal tuples are one object: nodes that are alike are recognised by it."""
        same: dict[tuple[Option, ...], tuple[Option, ...]] = {}
        found = []
        different = [_different(found) for found in self.profile.segments]
        for segment, kind in enumerate(self.kinds):
            options = tuple(option for option in different[kind] if allowed(segment, option))
            found.append(same.setdefault(options, options))
        return tuple(found)

    def _nodes(self, needs: Sequence[Needs]) -> tuple[Node, ...]:
        """Segments that need and cost the same share a node."""
        made: dict[object, Node] = {}
        nodes = []
        for i, (need, place) in enumerate(zip(needs, places(needs), strict=True)):
            own = tuple((c.boundary, c.times) for c in self._own.get(i, ()))
            key = (id(need), own, place)
            if key not in made:
                kept, scratch = kept_and_scratch(need, place)
                made[key] = Node(self._times(i, own), np.maximum(kept, 0), scratch)
            nodes.append(made[key])
        return tuple(nodes)

    def _times(self, i: int, own: Sequence[tuple[Boundary, int]]) -> Array:
        costs = self.profile.segments[self.kinds[i]].costs
        return np.array(
            [
                costs[option].time_s
                + sum(times * self._reshard(b, option, option) for b, times in own)
                for option in self.options[i]
            ]
        )

    def _needs(self, i: int) -> Needs:
        shared = tuple(
            crossing.boundary
            for ends, crossings in self._between.items()
            if i in ends
            for crossing in crossings
            if crossing.target == i and crossing.boundary.what == "argument"
        )
        key = (self.kinds[i], self.options[i], shared)
        if key not in self._known:
            self._known[key] = self._make_needs(self.kinds[i], self.options[i], shared)
        return self._known[key]

    def _make_needs(
        self, kind: int, options: Sequence[Option], shared: Sequence[Boundary]
    ) -> Needs:
        found = self.profile.segments[kind]
        uses = [found.costs[option].memory for option in options]
        activations = np.array([use.activation_bytes for use in uses], dtype=np.int64)
        gradients = np.array([use.gradient_bytes for use in uses], dtype=np.int64)
        stored = np.array(
            [
                use.stored_bytes
                + self._twice(kind, option)
                - sum(self._bytes(b.target, b.shape, b.dtype, option) for b in shared)
                for use, option in zip(uses, options, strict=True)
            ],
            dtype=np.int64,
        )
        if len(found.kind.cuts) > 1:  # a loop over micro-batches holds its sums from the start
            stored = stored + activations + gradients
            activations = gradients = np.zeros_like(stored)
        scratch = np.array([use.scratch_bytes for use in uses], dtype=np.int64)
        return Needs(stored, activations, gradients, scratch)

    def _twice(self, kind: int, option: Option) -> int:
        """Training state that the step does not donate: its old and its new values."""
        found = self.profile.segments[kind]
        total = 0
        for number, cut in enumerate(found.kind.cuts):
            for position in cut.goes_round.values():
                value = cut.graph.values[cut.graph.inputs[position]]
                if cut.inputs[position] not in self.donated:
                    end = End(kind, number, position, result=False)
                    total += self._bytes(end, value.shape, str(value.dtype), option)
        return total

    def _bytes(self, end: End, shape: tuple[int, ...], dtype: str, option: Option) -> int:
        """What one device holds of it."""
        layout = end.layout(self.profile.segments[end.kind].layouts[option])
        local = local_shape(layout, shape, self.analysis.mesh_shape)
        return math.prod(local) * int(jnp.dtype(dtype).itemsize)

    def _edge(self, i: int, j: int, crossings: Sequence[Crossing]) -> Array:
        """Seconds for every option of i with every option of j."""
        key = (
            self.options[i],
            self.options[j],
            tuple((c.boundary, c.times, c.source == i) for c in crossings),
        )
        if key not in self._matrices:
            total = np.zeros((len(self.options[i]), len(self.options[j])))
            for crossing in crossings:
                forward = crossing.source == i
                ends = (i, j) if forward else (j, i)
                table = self._table(crossing.boundary, *(self.options[end] for end in ends))
                total += crossing.times * (table if forward else table.T)
            self._matrices[key] = total
        return self._matrices[key]

    def _table(
        self, boundary: Boundary, sources: Sequence[Option], targets: Sequence[Option]
    ) -> Array:
        """Options that lie alike at the boundary share a row or column."""
        rows, left = self._by_layout(boundary.source, sources)
        columns, right = self._by_layout(boundary.target, targets)
        small = np.array([[self._reshard(boundary, a, b) for b in right] for a in left])
        return small[np.ix_(rows, columns)]

    def _by_layout(self, end: End, options: Sequence[Option]) -> tuple[list[int], list[Option]]:
        """Which of the layouts there each option has, and an option for each layout."""
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
