"""Least time by what the nodes keep, scratch left aside: the curve of a subproblem.

It is known in two ways: exactly at the corners of its hull, and everywhere as far as rounding into
buckets allows.

**Corners** (`hull`). Each price has its corner (`price`). Between two corners the price at which
they cost the same finds the next one, or shows that there is none; the widest gaps come first. With
many nodes the corners are dense and are almost the whole curve, whatever the sizes in bytes are.

**Buckets** (`Bucketing`). What an option keeps counts from the least that its node can keep, so
what every plan has in common is not rounded, and is rounded up:

    shift = ceil((kept - least of the node) / unit)
    kept of a choice <= base + unit * Σ shift <= kept of the choice + error

`error` sums, over the nodes, the most that an option loses by rounding. The unit is the greatest
common divisor of all differences where so many buckets are affordable: then nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cfp.search.elimination import Steps, build
from cfp.search.price import Priced, at_prices, wide_apart
from cfp.search.problem import Array, Numbers, Problem
from cfp.search.subproblem import Subproblem
from cfp.search.table import Tables, backtrack, forward

HULL_LANES = 32  # prices at a time: each takes a fifth of what it does 4 at a time; 64 gain little
NARROW = 1 / 256  # of the range: narrower gaps are not looked into, a report shows no such detail
CELLS = 5 * 10**7  # numbers stored in a table: 400 MB; twice that is felt on a laptop
CHEAP = 1 << 14  # buckets take 0.1 s for 50 segments: where they suffice, nothing is rounded
TRIED = 2 * 10**5  # units times options: looking for a unit takes a millisecond, a table far more
EQUAL = 1e-12  # of the time: sums of a thousand times in another order differ by less
CURVE_CLOSE = 1e-3  # of what may be kept: an error that no frontier in a report shows
LIMIT_CLOSE = 1e-5  # of what may be kept, at one limit: 1 MB of 100 GB
CORNERS = 64  # corners are easily found; where rounding is coarser than they are, they get the work
HULL_SHARE = 1 / 4  # of the work for corners where buckets are fine: they are the second opinion
FIRST_LOOK = 256  # choices read off a table at first, and
LOOK_FURTHER = 4  # times as many next: most often the first one fits, and reading all takes longest


@dataclass(frozen=True, slots=True, eq=False)
class Hull:
    """The corners of the curve's hull. What is kept counts from the least that the nodes can
    keep."""

    choices: Numbers
    prices: Array
    least: Array  # of T + price * kept
    gap_bytes: int  # the widest between two corners

    def least_over(self, times_s: Array) -> Array:
        """Returns the least that a choice faster than each time can keep, over the least of each
        node."""
        found = np.zeros(len(times_s))
        for price, least in zip(self.prices, self.least, strict=True):
            if price > 0:
                np.maximum(found, (least - times_s) / price, out=found)
            else:
                found[times_s <= least] = np.inf
        return found


def hull(problem: Problem, steps: Steps, work: float) -> Hull:
    """Returns as many corners as the work allows. There must be a choice that is possible."""
    found = [at_prices(problem, steps, wide_apart(problem))]
    most = int(work / sum(step.work for step in steps.steps))
    tried: set[float] = set()
    while len(tried) < most:
        prices = [p for p in _between(found).tolist() if p not in tried][:HULL_LANES]
        if not prices:
            break
        tried.update(prices)
        found.append(at_prices(problem, steps, np.array(prices)))
    kept, _ = _corners(found)
    return Hull(
        np.concatenate([priced.choices for priced in found]),
        np.concatenate([priced.prices for priced in found]),
        np.concatenate([priced.least for priced in found]),
        int(np.diff(kept).max(initial=0)),
    )


def _between(found: list[Priced]) -> Array:
    """Returns the prices at which neighbours cost the same, those of the widest gaps first."""
    kept, times_s = _corners(found)
    wider, longer = np.diff(kept), -np.diff(times_s)
    gaps = np.argsort(-wider, kind="stable")
    gaps = gaps[(longer[gaps] > 0) & (wider[gaps] > NARROW * np.ptp(kept))]
    prices: Array = longer[gaps] / wider[gaps]
    return prices


def _corners(found: list[Priced]) -> tuple[Numbers, Array]:
    """Returns what they keep, ascending, and their times."""
    kept = np.concatenate([priced.over_bytes for priced in found])
    times_s = np.concatenate([priced.times_s for priced in found])
    order = np.lexsort((times_s, kept))
    order = order[np.append(True, np.diff(kept[order]) > 0)]
    return kept[order], times_s[order]


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    unit_bytes: int
    error_bytes: int
    shifts: list[Numbers]
    width: int


class Bucketing:
    """Choices of the unit for a problem, by the work that they make.

    No bucket is needed beyond the one of `fastest`, a choice that no other beats in time, nor
    beyond those that a choice which keeps `kept_bytes` may have.
    """

    def __init__(
        self,
        problem: Problem,
        steps: Steps,
        *,
        fastest: Numbers | None = None,
        kept_bytes: int | None = None,
    ) -> None:
        kept = [node.kept_bytes for node in problem.nodes]
        self.base_bytes = sum(int(sizes.min()) for sizes in kept)
        over = [sizes - sizes.min() for sizes in kept]
        self.divisor = max(1, int(np.gcd.reduce(np.concatenate(over))))
        self._over = [sizes // self.divisor for sizes in over]
        self._most = np.array([sizes.max() for sizes in self._over])[list(steps.order)]
        self._alike = _alike(self._over)
        self._work = np.array([step.work for step in steps.steps], dtype=np.float64)
        self._cells = np.array([step.cells for step in steps.steps], dtype=np.float64)
        self._fastest: Numbers | None = None
        if fastest is not None:
            self._fastest = np.array([o[c] for o, c in zip(self._over, fastest, strict=True)])
        self._room: int | None = None
        if kept_bytes is not None:
            self._room = (kept_bytes - self.base_bytes) // self.divisor

    @property
    def range_bytes(self) -> int:
        """Returns the most that a choice of use keeps over the least."""
        return int(self._widths(1)[-1] - 1) * self.divisor

    def unit(self, work: float) -> int | None:
        """Returns the least that is affordable, in divisors."""
        low, high = 1, max(1, int(self._most.max()))
        if not self._affordable(high, work):
            return None
        while low < high:
            middle = (low + high) // 2
            if self._affordable(middle, work):
                high = middle
            else:
                low = middle + 1
        return low

    def error_bytes(self, unit: int) -> int:
        return int(self._errors(np.array([unit]))[0]) * self.divisor

    def buckets(self, work: float, close: float) -> Buckets | None:
        """Returns the affordable unit that loses least: where nodes are of few kinds, almost all
        differences are multiples of one unit. Nothing is done for errors under the share `close` of
        the range."""
        unit = self.unit(work)
        if unit is None:
            return None
        if self._widths(1)[-1] > CHEAP:
            rounded = int(np.count_nonzero(self._most))
            unit = max(unit, int(close * self._widths(1)[-1] / rounded))
        if unit > 1:
            count = max(1, TRIED // sum(len(sizes) for sizes, _ in self._alike))
            tried = np.unique(np.linspace(unit, 2 * unit, count).astype(np.int64))
            unit = int(tried[self._errors(tried).argmin()])
        return Buckets(
            unit * self.divisor,
            self.error_bytes(unit),
            [-(-sizes // unit) for sizes in self._over],
            int(self._widths(unit)[-1]),
        )

    def _affordable(self, unit: int, work: float) -> bool:
        widths = self._widths(unit)
        return float(self._work @ widths) <= work and float(self._cells @ widths) <= CELLS

    def _errors(self, units: Numbers) -> Numbers:
        """Returns the error of each unit, in divisors."""
        lost = np.zeros(len(units), dtype=np.int64)
        for sizes, count in self._alike:
            lost += count * (-sizes % units[:, None]).max(axis=1)
        return lost

    def _widths(self, unit: int) -> Numbers:
        """Returns how many buckets there are after each step."""
        widths = np.cumsum(-(-self._most // unit)) + 1
        if self._fastest is not None:
            widths = np.minimum(widths, (-(-self._fastest // unit)).sum() + 1)
        if self._room is not None:
            lost = int(self._errors(np.array([unit]))[0])
            widths = np.minimum(widths, (self._room + lost) // unit + 1)
        return widths


def _alike(tables: list[Numbers]) -> list[tuple[Numbers, int]]:
    """Returns the distinct columns, and how often each is there."""
    distinct = {table.tobytes(): table for table in tables}
    count = Counter(table.tobytes() for table in tables)
    return [(table, count[key]) for key, table in distinct.items()]


@dataclass(frozen=True, slots=True, eq=False)
class Falling:
    """The least time by memory, in buckets. `times_s[b]` is the least time of any choice whose
    shifts sum up to b or less."""

    times_s: Array
    unit_bytes: int
    error_bytes: int

    def least_over(self, times_s: Array) -> Array:
        """Returns the least that a choice faster than each time can keep, over the nodes' least."""
        bucket = np.searchsorted(-self.times_s, -times_s, side="right")
        over = np.maximum(0, bucket * self.unit_bytes - self.error_bytes)
        return np.where(bucket < len(self.times_s), over, np.inf)

    @property
    def falls(self) -> Numbers:
        """Returns the buckets that are faster than all before."""
        return np.flatnonzero(self.times_s < np.append(np.inf, self.times_s[:-1]))


@dataclass(frozen=True, slots=True, eq=False)
class FrontierCurve:
    """Choices along the curve, as choices of the whole problem, and what is known of all others."""

    choices: Numbers
    base_bytes: int
    known: tuple[Falling | Hull, ...]

    def least_bytes(self, times_s: Array) -> Array:
        """Returns the least that a choice faster than each time can keep."""
        over = np.zeros(len(times_s))
        for known in self.known:
            np.maximum(over, known.least_over(times_s * (1 - EQUAL)), out=over)
        return over + self.base_bytes


def find_curve(sub: Subproblem, order: Sequence[int], work: float) -> FrontierCurve | None:
    """Returns the curve as far as time falls; None where no choice is possible."""
    steps = build(sub.problem, order)
    fastest = fastest_of(sub.problem, steps)
    if fastest is None:
        return None
    rounding = Bucketing(sub.problem, steps, fastest=fastest)
    buckets = rounding.buckets(work, CURVE_CLOSE)
    coarse = buckets is None or buckets.error_bytes > rounding.range_bytes / CORNERS
    corners = hull(sub.problem, steps, work if coarse else work * HULL_SHARE)
    if buckets is None or buckets.error_bytes > corners.gap_bytes:
        return FrontierCurve(sub.numbered(corners.choices), rounding.base_bytes, (corners,))
    tables, falling = _table(sub.problem, steps, buckets)
    choices = np.concatenate([corners.choices, backtrack(tables, falling.falls)])
    return FrontierCurve(sub.numbered(choices), rounding.base_bytes, (corners, falling))


def curve_within(
    sub: Subproblem, order: Sequence[int], work: float, kept_bytes: int, limit_bytes: int
) -> FrontierCurve | None:
    """Returns the curve of what keeps `kept_bytes` at most. The choices on it are the fastest that
    need `limit_bytes` at most, if any; None where no choice is possible."""
    steps = build(sub.problem, order)
    fastest = fastest_of(sub.problem, steps)
    rounding = Bucketing(sub.problem, steps, fastest=fastest, kept_bytes=kept_bytes)
    if fastest is None or kept_bytes < rounding.base_bytes:
        return None
    buckets = rounding.buckets(work, LIMIT_CLOSE)
    if buckets is None:
        return FrontierCurve(sub.numbered(fastest[None, :]), rounding.base_bytes, ())
    tables, falling = _table(sub.problem, steps, buckets)
    choices = _fitting(sub, tables, falling.falls[::-1], limit_bytes)
    return FrontierCurve(choices, rounding.base_bytes, (falling,))


def fastest_of(problem: Problem, steps: Steps) -> Numbers | None:
    """Returns the choice of least time, memory left aside."""
    tables = forward(steps, _times(problem))
    if np.isinf(tables.last[0]):
        return None
    return backtrack(tables, np.zeros(1, dtype=np.int64)).reshape(-1)


def _table(problem: Problem, steps: Steps, buckets: Buckets) -> tuple[Tables, Falling]:
    tables = forward(steps, _times(problem), buckets.shifts, buckets.width)
    least = np.minimum.accumulate(tables.last)
    return tables, Falling(least, buckets.unit_bytes, buckets.error_bytes)


def _fitting(sub: Subproblem, tables: Tables, at: Numbers, limit_bytes: int) -> Numbers:
    """Returns the first of these buckets whose choice fits. What rounding up took for too much may
    fit, but seldom by far: a few are looked at, then more."""
    start, count = 0, FIRST_LOOK
    while start < len(at):
        choices = sub.numbered(backtrack(tables, at[start : start + count]))
        fits = np.flatnonzero(sub.whole.memories(choices) <= limit_bytes)
        if len(fits):
            return choices[fits[:1]]
        start, count = start + count, count * LOOK_FURTHER
    return np.empty((0, len(sub.chosen)), dtype=np.int64)


def _times(problem: Problem) -> list[Array]:
    return [node.times_s[:, None] for node in problem.nodes]
