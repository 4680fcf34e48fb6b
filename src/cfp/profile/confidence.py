"""How sure a median is.

The median of n runs lies, 95 times of 100, between the k-th smallest and the k-th largest of them,
where k is the largest rank with P(Binomial(n, 1/2) < k) <= 0.025. Of fewer than six runs that
asks for more than there is; then all of them bound it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SURE = 0.95


def median_interval(runs: Sequence[float]) -> tuple[float, float]:
    """Between which the median lies with 95 % confidence."""
    count = len(runs)
    below, rank = 0.0, 0
    while rank < count // 2:
        below += math.comb(count, rank) / 2**count
        if below > (1 - SURE) / 2:
            break
        rank += 1
    place = max(rank, 1) - 1
    ordered = sorted(runs)
    return ordered[place], ordered[count - 1 - place]


def ratios(runs: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round, of two programs that ran in turn: what slowed both down cancels out. Their
    median has an interval as that of any runs has."""
    return [a / b for a, b in zip(runs, others, strict=False)]


def level(runs: Sequence[float], others: Sequence[float]) -> bool | None:
    """1 is in the interval of their ratio: none is clearly faster. None: they share no round."""
    found = ratios(runs, others)
    if not found:
        return None
    low, high = median_interval(found)
    return low <= 1.0 <= high
