"""Within which range integers must lie so that what they index is there.

Every integer of a program lies in an interval that follows from those of the arguments
(`cfp.segments.intervals`), through loops and into the bodies of control flow. An index is right
where its interval lies in what may be indexed. The range [low, high) of an argument is the longest
for which as many indices as possible are right: `low` is 0, or what brings an index into its place;
`high` is found by bisection, as a longer range is never right where a shorter one is not.

A comparison with an iota (`one_hot`) counts as an index, after all real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from cfp.segments.indices import Use, apply, indexes
from cfp.segments.intervals import RULES
from cfp.segments.spans import ANYTHING, Lanes, Operation, Span, constant, limits
from cfp.trace import Graph

CONSTANTS = 8  # tried as where a range begins; each takes a pass over what follows from it
SOURCES = frozenset({"iota", "argmax", "argmin", "top_k"})  # whatever their operands are


def index_ranges(graph: Graph, roots: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Returns the range [low, high) of each of the values that indexes something; others have
    none."""
    cone = _Cone(graph, roots)
    return {root: found for root in roots if (found := cone.settle(root)) is not None}


class _Cone:
    """The equations that indices depend on, and what is known of the roots so far."""

    def __init__(self, graph: Graph, roots: Sequence[int]) -> None:
        self.graph = graph
        self.known: dict[int, Lanes] = {
            root: _unsettled(graph.values[root].dtype) for root in roots
        }
        self.env: dict[int, Lanes] = {}
        self.equations = self._ancestors()
        self._run(self.equations, self.env)

    def _ancestors(self) -> list[int]:
        ends = {e.index for e in self.graph.equations if indexes(e.op.primitive, e.op.params)}
        followed: set[int] = set()
        todo = [(end, False) for end in ends]
        while todo:
            e, in_full = todo.pop()
            for value in self.graph.equations[e].inputs:
                found = self.graph.values[value]
                whole = in_full or not jnp.issubdtype(found.dtype, np.inexact)
                if found.producer is None or value in self.known or not whole:
                    continue
                if found.producer not in followed:
                    followed.add(found.producer)
                    primitive = self.graph.equations[found.producer].primitive
                    if primitive in RULES and primitive not in SOURCES:
                        todo.append((found.producer, True))
        return sorted(ends | followed)

    def _after(self, root: int) -> list[int]:
        """Returns the equations that depend on a root."""
        reached = {root}
        found = []
        for e in self.equations:
            equation = self.graph.equations[e]
            if not reached.isdisjoint(equation.inputs):
                found.append(e)
                reached.update(v for v in equation.outputs if v not in self.known)
        return found

    def _run(self, equations: Iterable[int], env: dict[int, Lanes]) -> list[Use]:
        uses: list[Use] = []
        for e in equations:
            equation, op = self.graph.equations[e], self.graph.equations[e].op
            plain = Operation(op.primitive, op.params, op.in_shapes, op.out_shapes, op.out_dtypes)
            operands = [self._lanes(value, env) for value in equation.inputs]
            env.update(zip(equation.outputs, apply(plain, operands, uses), strict=True))
        return uses

    def _lanes(self, value: int, env: Mapping[int, Lanes]) -> Lanes:
        for found in (self.known, env):
            if value in found:
                return found[value]
        constants = self.graph.constants
        return constant(constants[value]) if value in constants else ANYTHING

    def _starts(
        self, after: Iterable[int], holds: Span, uses: Callable[[int, int], list[Use]]
    ) -> list[int]:
        """Returns where a range may begin: 0, 1, the constants that the root meets (`x - 1000`),
        and what moves a first index to where it may be. Starts from which nothing is indexed are
        left out."""
        met = {
            int(end)
            for e in after
            for value in self.graph.equations[e].inputs
            if value in self.graph.constants
            for lane in constant(self.graph.constants[value])
            if lane is not None and math.isfinite(lane.low)
            for end in (lane.low, -lane.low)
        }
        starts = dict.fromkeys((0, 1, *sorted(met, key=abs)[:CONSTANTS]))
        first = [use for start in (0, 1) for use in uses(start, start + 1)]
        starts |= dict.fromkeys(math.ceil(use.allowed.low - use.lies.low) for use in first)
        return [
            start for start in starts if holds.low <= start <= holds.high and uses(start, start + 1)
        ]

    def settle(self, root: int) -> tuple[int, int] | None:
        """Returns the range of a root, which is known from now on."""
        dtype = self.graph.values[root].dtype
        if not jnp.issubdtype(dtype, np.integer):
            return None
        after = self._after(root)

        def uses(low: int, high: int) -> list[Use]:
            self.known[root] = (Span(low, high - 1),)
            return self._run(after, dict(self.env))

        def score(low: int, high: int) -> tuple[int, int]:
            right = [use.real for use in uses(low, high) if use.right]
            return sum(right), len(right)

        starts = self._starts(after, limits(dtype), uses)
        points = {start: score(start, start + 1) for start in starts}
        self.known[root] = _unsettled(dtype)
        if not starts:
            return None
        best = max(points.values())
        most = max(int(use.allowed.high) for start in starts for use in uses(start, start + 1)) + 1
        last = int(limits(dtype).high) + 1
        found = [
            (start, _last(start, min(start + most, last), lambda *at: score(*at) == best))
            for start in starts
            if points[start] == best
        ]
        # zero alone is no range to choose, and negative numbers are rarely meant
        low, high = max(found, key=lambda at: (at[0] >= 0 and at[1] - at[0] > 1, at[1] - at[0]))
        self.known[root] = (Span(low, high - 1),)
        self._run(after, self.env)
        return low, high


def _last(low: int, most: int, holds: Callable[[int, int], bool]) -> int:
    """Returns the largest end up to `most` for which `holds` is true, as it is for `low + 1`."""
    right, wrong = low + 1, most + 1
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (middle, wrong) if holds(low, middle) else (right, middle)
    return right


def _unsettled(dtype: Any) -> Lanes:
    """Bounds an argument whose range is not known yet: by the least, so that others have room."""
    if dtype == np.bool_:
        return (Span(0, 1),)
    return (Span(0, 0),) if jnp.issubdtype(dtype, np.integer) else ANYTHING
