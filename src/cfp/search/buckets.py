"""Memory in buckets.

What an option keeps counts from the least that its node can keep, so what every plan has in common
is not rounded, and is rounded up:

    shift = ceil((kept - least of the node) / unit)
    kept of a choice <= base + unit * Σ shift <= kept of the choice + error

`error` sums, over the nodes, the most that an option loses by rounding. The unit is the greatest
common divisor of all differences where so many buckets are affordable: then nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from cfp.search.problem import Numbers, Problem
from cfp.search.steps import Steps

CELLS = 5 * 10**7  # numbers stored, 400 MB
CHEAP = 1 << 14
TRIED = 2 * 10**5  # units times options


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    unit_bytes: int
    error_bytes: int
    shifts: list[Numbers]
    width: int


class Rounding:
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
        """The most that a choice of use keeps over the least."""
        return int(self._widths(1)[-1] - 1) * self.divisor

    def unit(self, work: float) -> int | None:
        """The least that is affordable, in divisors."""
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
        """Of the affordable units the one that loses least: with few kinds of nodes there is one
        of which all differences are almost multiples. Nothing is done for errors under the share
        `close` of the range, unless exact is cheap. None: no unit is affordable."""
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
        """For each unit, in divisors."""
        lost = np.zeros(len(units), dtype=np.int64)
        for sizes, count in self._alike:
            lost += count * (-sizes % units[:, None]).max(axis=1)
        return lost

    def _widths(self, unit: int) -> Numbers:
        """Buckets after each step."""
        widths = np.cumsum(-(-self._most // unit)) + 1
        if self._fastest is not None:
            widths = np.minimum(widths, (-(-self._fastest // unit)).sum() + 1)
        if self._room is not None:
            lost = int(self._errors(np.array([unit]))[0])
            widths = np.minimum(widths, (self._room + lost) // unit + 1)
        return widths


def _alike(tables: list[Numbers]) -> list[tuple[Numbers, int]]:
    """The distinct ones, and how often each is there."""
    distinct = {table.tobytes(): table for table in tables}
    count = Counter(table.tobytes() for table in tables)
    return [(table, count[key]) for key, table in distinct.items()]
