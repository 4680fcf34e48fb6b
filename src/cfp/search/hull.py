"""The corners of the frontier, where it is convex.

Each price has its corner (`price`). Between two corners the price at which they cost the same finds
the next one, or shows that there is none; the widest gaps come first. With many nodes the corners
are dense and are almost the whole frontier, whatever the sizes in bytes are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cfp.search.price import Priced, at_prices, wide_apart
from cfp.search.problem import Array, Numbers, Problem
from cfp.search.steps import Steps

LANES = 32
NARROW = 1 / 256  # of the range: gaps that are not looked into


@dataclass(frozen=True, slots=True, eq=False)
class Hull:
    """What is kept counts from the least that the nodes can keep."""

    choices: Numbers
    prices: Array
    least: Array  # of T + price * kept
    gap_bytes: int  # the widest between two corners

    def least_over(self, times_s: Array) -> Array:
        """A choice that is faster keeps no less than this over the least of each node."""
        found = np.zeros(len(times_s))
        for price, least in zip(self.prices, self.least, strict=True):
            if price > 0:
                np.maximum(found, (least - times_s) / price, out=found)
            else:
                found[times_s <= least] = np.inf
        return found


def hull(problem: Problem, steps: Steps, work: float) -> Hull:
    """As many corners as the work allows. There must be a choice that is possible."""
    found = [at_prices(problem, steps, wide_apart(problem))]
    most = int(work / sum(step.work for step in steps.steps))
    tried: set[float] = set()
    while len(tried) < most:
        prices = [p for p in _between(found).tolist() if p not in tried][:LANES]
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
    """Prices at which neighbours cost the same, those of the widest gaps first."""
    kept, times_s = _corners(found)
    wider, longer = np.diff(kept), -np.diff(times_s)
    gaps = np.argsort(-wider, kind="stable")
    gaps = gaps[(longer[gaps] > 0) & (wider[gaps] > NARROW * np.ptp(kept))]
    prices: Array = longer[gaps] / wider[gaps]
    return prices


def _corners(found: list[Priced]) -> tuple[Numbers, Array]:
    """What they keep, ascending, and their times."""
    kept = np.concatenate([priced.over_bytes for priced in found])
    times_s = np.concatenate([priced.times_s for priced in found])
    order = np.lexsort((times_s, kept))
    order = order[np.append(True, np.diff(kept[order]) > 0)]
    return kept[order], times_s[order]
