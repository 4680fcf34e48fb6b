"""Least time by what the nodes keep, scratch left aside.

It is known in two ways: exactly at the corners of its hull (`hull`), and everywhere as far as
rounding into buckets allows (`buckets`, `table`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cfp.search.buckets import Buckets, Rounding
from cfp.search.hull import Hull, hull
from cfp.search.part import Part
from cfp.search.problem import Array, Numbers, Problem
from cfp.search.steps import Steps, build
from cfp.search.table import Tables, backtrack, forward

EQUAL = 1e-12  # of the time; sums in another order differ by less
CLOSE, CLOSER = 1e-3, 1e-5  # of what may be kept: good enough for a curve, for one limit
CORNERS = 64  # are easily found; where rounding is coarser they get the work
FIRST, TIMES = 256, 4


@dataclass(frozen=True, slots=True, eq=False)
class Falling:
    """`times_s[b]` is the least time of any choice whose shifts sum up to b or less."""

    times_s: Array
    unit_bytes: int
    error_bytes: int

    def least_over(self, times_s: Array) -> Array:
        """A choice that is faster keeps no less than this over the least of each node."""
        bucket = np.searchsorted(-self.times_s, -times_s, side="right")
        over = np.maximum(0, bucket * self.unit_bytes - self.error_bytes)
        return np.where(bucket < len(self.times_s), over, np.inf)

    @property
    def falls(self) -> Numbers:
        """The buckets that are faster than all before."""
        return np.flatnonzero(self.times_s < np.append(np.inf, self.times_s[:-1]))


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Choices along the curve, as choices of the whole problem, and what is known of all others."""

    choices: Numbers
    base_bytes: int
    known: tuple[Falling | Hull, ...]

    def least_bytes(self, times_s: Array) -> Array:
        """A choice that is faster keeps no less than this."""
        over = np.zeros(len(times_s))
        for known in self.known:
            np.maximum(over, known.least_over(times_s * (1 - EQUAL)), out=over)
        return over + self.base_bytes


def trace(part: Part, order: Sequence[int], work: float) -> Curve | None:
    """The curve as far as time falls. None: no choice is possible."""
    steps = build(part.problem, order)
    fastest = fastest_of(part.problem, steps)
    if fastest is None:
        return None
    rounding = Rounding(part.problem, steps, fastest=fastest)
    buckets = rounding.buckets(work, CLOSE)
    coarse = buckets is None or buckets.error_bytes > rounding.range_bytes / CORNERS
    corners = hull(part.problem, steps, work if coarse else work / 4)
    if buckets is None or buckets.error_bytes > corners.gap_bytes:
        return Curve(part.numbered(corners.choices), rounding.base_bytes, (corners,))
    tables, falling = _table(part.problem, steps, buckets)
    choices = np.concatenate([corners.choices, backtrack(tables, falling.falls)])
    return Curve(part.numbered(choices), rounding.base_bytes, (corners, falling))


def trace_within(
    part: Part, order: Sequence[int], work: float, kept_bytes: int, limit_bytes: int
) -> Curve | None:
    """The curve of what keeps `kept_bytes` at most. The choices on it are the fastest that need
    `limit_bytes` at most, if any. None: no choice is possible."""
    steps = build(part.problem, order)
    fastest = fastest_of(part.problem, steps)
    rounding = Rounding(part.problem, steps, fastest=fastest, kept_bytes=kept_bytes)
    if fastest is None or kept_bytes < rounding.base_bytes:
        return None
    buckets = rounding.buckets(work, CLOSER)
    if buckets is None:
        return Curve(part.numbered(fastest[None, :]), rounding.base_bytes, ())
    tables, falling = _table(part.problem, steps, buckets)
    choices = _fitting(part, tables, falling.falls[::-1], limit_bytes)
    return Curve(choices, rounding.base_bytes, (falling,))


def fastest_of(problem: Problem, steps: Steps) -> Numbers | None:
    """The choice of least time, memory left aside."""
    tables = forward(steps, _times(problem))
    if np.isinf(tables.last[0]):
        return None
    return backtrack(tables, np.zeros(1, dtype=np.int64)).reshape(-1)


def _table(problem: Problem, steps: Steps, buckets: Buckets) -> tuple[Tables, Falling]:
    tables = forward(steps, _times(problem), buckets.shifts, buckets.width)
    least = np.minimum.accumulate(tables.last)
    return tables, Falling(least, buckets.unit_bytes, buckets.error_bytes)


def _fitting(part: Part, tables: Tables, at: Numbers, limit_bytes: int) -> Numbers:
    """The first of these buckets whose choice fits. What rounding up took for too much may fit, but
    seldom by far: few are looked at, then more."""
    start, count = 0, FIRST
    while start < len(at):
        choices = part.numbered(backtrack(tables, at[start : start + count]))
        fits = np.flatnonzero(part.whole.memories(choices) <= limit_bytes)
        if len(fits):
            return choices[fits[:1]]
        start, count = start + count, count * TIMES
    return np.empty((0, len(part.chosen)), dtype=np.int64)


def _times(problem: Problem) -> list[Array]:
    return [node.times_s[:, None] for node in problem.nodes]
