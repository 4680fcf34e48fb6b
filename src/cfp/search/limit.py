"""The fastest plan within a limit, more exactly than the whole frontier is known.

Prices rule out the options that no faster plan within the limit can have (`price`). Plans are told
apart by the largest scratch, in halves, as long as something is left: the less it varies, the
sharper the bounds. Over what remains a table with fine buckets finds faster plans (`curve`).
Often nothing remains, or nothing is lost by rounding: then the plan is the best there is.
Otherwise the slack says how far that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cfp.search.curve import trace_within
from cfp.search.levels import Level, scratch_values, under
from cfp.search.part import Part
from cfp.search.prune import prune
from cfp.search.solution import Point, best_of, points
from cfp.search.useful import useful

SPLITS = (0, 24, 24, 24)  # a round each; a good plan first makes the bounds sharp


@dataclass(frozen=True, slots=True, eq=False)
class _Among:
    """Plans of a part whose largest scratch is `low_bytes` or more."""

    part: Part
    order: Sequence[int]
    low_bytes: int


def fastest_within(
    part: Part, order: Sequence[int], limit_bytes: int, best: Point, work: float
) -> tuple[Point, int]:
    """A plan no slower than `best`, and its slack: none that needs `limit_bytes` less that is
    faster."""
    left = [_Among(part, order, 0)]
    slack = 0
    for splits in SPLITS:
        left, best = _divide(left, limit_bytes, best, splits)
        had = best
        found = []
        for among in left:
            part = prune(among.part, scratch=False)
            share = work / len(SPLITS) / len(left)
            kept_bytes = limit_bytes - among.low_bytes
            curve = trace_within(part, among.order, share, kept_bytes, limit_bytes)
            if curve is not None:
                found.append(Level(curve, among.low_bytes))
                best = best_of([best, *points(part.whole, curve.choices)], limit_bytes) or best
        time_s = np.array([best.time_s])
        least = min([limit_bytes + 1.0, *(float(lv.least_bytes(time_s)[0]) for lv in found)])
        slack = limit_bytes + 1 - int(least)
        if slack == 0 or (best is had and splits):
            break
    return best, slack


def _divide(
    left: list[_Among], limit_bytes: int, best: Point, splits: int
) -> tuple[list[_Among], Point]:
    """What may still hold a faster plan; `splits` times a piece is cut in two."""
    done = []
    waiting = left[::-1]
    while waiting:
        among = waiting.pop()
        low = among.low_bytes
        part, order, best = useful(among.part, among.order, limit_bytes, low, best)
        if part.empty:
            continue
        values = scratch_values(part)
        values = values[np.searchsorted(values, low) :]
        if len(values) > 1 and splits:
            splits -= 1
            middle = len(values) // 2
            waiting.append(_Among(part, order, int(values[middle])))
            waiting.append(_Among(under(part, int(values[middle - 1])), order, low))
        elif len(values):
            done.append(_Among(part, order, int(values[0])))
    return done, best
