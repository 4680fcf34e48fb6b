"""How well one figure orders plans as another does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def kendall(xs: Sequence[float], ys: Sequence[float], apart: float = 0.0) -> float:
    """Returns Kendall's tau: pairs that both order alike, less those they order otherwise, over all
    pairs whose `ys` differ by more than `apart`."""
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(xs)), 2)
        if abs(ys[i] - ys[j]) > apart * min(ys[i], ys[j])
    ]
    signs = [_sign(xs[i] - xs[j]) * _sign(ys[i] - ys[j]) for i, j in pairs]
    return sum(signs) / max(len(pairs), 1)


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)
