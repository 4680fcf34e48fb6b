"""The fastest plan within a limit, more exactly than the whole frontier is known.

Prices rule out the options that no faster plan within the limit can have (`narrow`). Plans are told
apart by the largest scratch, in halves, as long as something is left: the less it varies, the
sharper the bounds (`_divide`). Over what remains a table with fine buckets finds faster plans
(`curve.curve_within`). Often nothing remains, or nothing is lost by rounding: then the plan is the
best there is. Otherwise the slack says how far that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cfp.search.curve import curve_within
from cfp.search.elimination import build
from cfp.search.price import FACTORS, Priced, at_prices, even, wide_apart
from cfp.search.problem import Array, Numbers, Point, Problem, best_of, points
from cfp.search.prune import prune
from cfp.search.subproblem import Subproblem
from cfp.search.table import marginals

SPLITS = (0, 24, 24, 24)  # times that a piece is cut in two, by round: each piece has a table. In
# the first none is: a good plan makes the bounds sharp
CLOSE = 1e-11  # of the time: bounds are sums of thousands of times, each rounded to 1e-16
LANES = 7  # prices between two: with the one at which they cost the same, eight lanes of a table
ZOOMS = 4  # times at the most that prices close in, each time by 7
WORTH = 0.95  # of the options left after a zoom: where so few go, another zoom is not worth it


@dataclass(frozen=True, slots=True, eq=False)
class _Among:
    """Plans of a subproblem whose largest scratch is `low_bytes` or more."""

    sub: Subproblem
    order: Sequence[int]
    low_bytes: int


def fastest_within(
    sub: Subproblem, order: Sequence[int], limit_bytes: int, best: Point, work: float
) -> tuple[Point, int]:
    """Returns a plan no slower than `best`, and its slack: no plan is faster that needs the limit
    less the slack, or less than that."""
    left = [_Among(sub, order, 0)]
    slack = 0
    for splits in SPLITS:
        left, best = _divide(left, limit_bytes, best, splits)
        had = best
        found = []
        for among in left:
            sub = prune(among.sub, scratch=False)
            share = work / len(SPLITS) / len(left)
            kept_bytes = limit_bytes - among.low_bytes
            curve = curve_within(sub, among.order, share, kept_bytes, limit_bytes)
            if curve is not None:
                found.append(replace(curve, base_bytes=curve.base_bytes + among.low_bytes))
                best = best_of([best, *points(sub.whole, curve.choices)], limit_bytes) or best
        time_s = np.array([best.time_s])
        least = min([limit_bytes + 1.0, *(float(c.least_bytes(time_s)[0]) for c in found)])
        slack = limit_bytes + 1 - int(least)
        if slack == 0 or (best is had and splits):
            break
    return best, slack


def _divide(
    left: list[_Among], limit_bytes: int, best: Point, splits: int
) -> tuple[list[_Among], Point]:
    """Returns what may still hold a faster plan; a piece is divided in two `splits` times."""
    done = []
    waiting = left[::-1]
    while waiting:
        among = waiting.pop()
        low = among.low_bytes
        sub, order, best = narrow(among.sub, among.order, limit_bytes, low, best)
        if sub.empty:
            continue
        values = sub.scratch_values()
        values = values[np.searchsorted(values, low) :]
        if len(values) > 1 and splits:
            splits -= 1
            middle = len(values) // 2
            waiting.append(_Among(sub, order, int(values[middle])))
            waiting.append(_Among(sub.under(int(values[middle - 1])), order, low))
        elif len(values):
            done.append(_Among(sub, order, int(values[0])))
    return done, best


def narrow(
    sub: Subproblem, order: Sequence[int], limit_bytes: int, scratch_bytes: int, best: Point
) -> tuple[Subproblem, Sequence[int], Point]:
    """Returns the options of plans that are faster than `best`, need the limit at most and
    `scratch_bytes` of scratch at least; the order to visit what is left of the nodes; and the best
    plan known by then. A node without options means that there is no such plan.

    L_λ(i, o) is the least T + λ·kept of all choices in which node i takes option o. If such a
    choice keeps no more than K then, for every λ, T >= L_λ(i, o) - λ·K. Where that is no less than
    the time of `best`, the option is of no use. The bound is sharpest near the price at which the
    cheapest choices keep just K: prices start far apart and close in."""
    prices: Array | None = None
    for zoom in range(ZOOMS):
        size = sub.size
        sub = sub.take(_small_enough(sub.problem, limit_bytes, scratch_bytes))
        if sub.empty:
            break
        sub, order = sub.contract(order)
        if prices is None:
            prices = wide_apart(sub.problem)
        room = _room(sub.problem, limit_bytes, scratch_bytes)
        priced = at_prices(sub.problem, build(sub.problem, order), prices)
        choices = sub.numbered(priced.choices)
        plans = points(sub.whole, choices)
        best = best_of([best, *plans], limit_bytes) or best
        bounds = [
            (least - prices * space[:, None]).max(axis=1)
            for least, space in zip(marginals(priced.tables), room, strict=True)
        ]
        sub = sub.take([np.flatnonzero(b < best.time_s * (1 - CLOSE)) for b in bounds])
        if sub.empty or (zoom > 0 and sub.size > WORTH * size):
            break
        widest = max(int(space.max()) for space in room)
        for_bounds = _closer(priced, priced.over_bytes <= widest)
        for_plans = _closer(priced, sub.whole.memories(choices) <= limit_bytes)
        prices = np.union1d(for_bounds, for_plans)
    return prune(sub), order, best


def _small_enough(problem: Problem, limit_bytes: int, scratch_bytes: int) -> list[Numbers]:
    """Returns the options without those that are too large in any plan."""
    room = _room(problem, limit_bytes, scratch_bytes)
    return [
        np.flatnonzero(node.kept_bytes - node.kept_bytes.min() <= space)
        for node, space in zip(problem.nodes, room, strict=True)
    ]


def _room(problem: Problem, limit_bytes: int, scratch_bytes: int) -> list[Numbers]:
    """Returns for each option what a plan that has it may keep, over the least that the nodes can
    keep."""
    base = sum(int(node.kept_bytes.min()) for node in problem.nodes)
    low = max(scratch_bytes, *(int(node.scratch_bytes.min()) for node in problem.nodes))
    return [limit_bytes - base - np.maximum(node.scratch_bytes, low) for node in problem.nodes]


def _closer(priced: Priced, fits: NDArray[np.bool_]) -> Array:
    """Returns prices between the last at which too much is kept and the first at which it is
    not."""
    prices = priced.prices
    if fits[0]:
        return prices[:1]
    if not fits.any():
        return np.asarray(prices[-1] * FACTORS[FACTORS >= 1])
    b = int(fits.argmax())
    low = max(float(prices[b - 1]), float(prices[b]) * 1e-3)
    between = np.geomspace(low, prices[b], LANES)
    return np.append(between, even(priced, b - 1, b))
