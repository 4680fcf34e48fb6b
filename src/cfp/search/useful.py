"""Which options a faster plan may have.

L_λ(i, o) is the least T + λ·kept of all choices in which node i takes option o. If such a choice
keeps no more than K then, for every λ, T >= L_λ(i, o) - λ·K. Where that is no less than a time
already had, the option is of no use. The bound is sharpest near the price at which the cheapest
choices keep just K: prices start far apart and close in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cfp.search.contract import contract
from cfp.search.part import Part
from cfp.search.price import FACTORS, Priced, at_prices, even, wide_apart
from cfp.search.problem import Array, Numbers, Problem
from cfp.search.prune import prune
from cfp.search.solution import Point, best_of, points
from cfp.search.steps import build
from cfp.search.table import marginals

CLOSE = 1e-11  # of the time; bounds are sums of many, rounded
LANES = 7
ZOOMS = 4
WORTH = 0.95  # of the options may be left, or it will not get much better


def useful(
    part: Part, order: Sequence[int], limit_bytes: int, scratch_bytes: int, best: Point
) -> tuple[Part, Sequence[int], Point]:
    """The options of plans faster than `best` that need the limit at most and `scratch_bytes` of
    scratch at least, the order to visit what is left of the nodes, and the best plan known by then.
    A node without options: there is no such plan."""
    prices: Array | None = None
    for zoom in range(ZOOMS):
        size = part.size
        part = part.take(_small_enough(part.problem, limit_bytes, scratch_bytes))
        if part.empty:
            break
        part, order = contract(part, order)
        if prices is None:
            prices = wide_apart(part.problem)
        room = _room(part.problem, limit_bytes, scratch_bytes)
        priced = at_prices(part.problem, build(part.problem, order), prices)
        choices = part.numbered(priced.choices)
        plans = points(part.whole, choices)
        best = best_of([best, *plans], limit_bytes) or best
        bounds = [
            (least - prices * space[:, None]).max(axis=1)
            for least, space in zip(marginals(priced.tables), room, strict=True)
        ]
        part = part.take([np.flatnonzero(b < best.time_s * (1 - CLOSE)) for b in bounds])
        if part.empty or (zoom > 0 and part.size > WORTH * size):
            break
        widest = max(int(space.max()) for space in room)
        for_bounds = _closer(priced, priced.over_bytes <= widest)
        for_plans = _closer(priced, part.whole.memories(choices) <= limit_bytes)
        prices = np.union1d(for_bounds, for_plans)
    return prune(part), order, best


def _small_enough(problem: Problem, limit_bytes: int, scratch_bytes: int) -> list[Numbers]:
    """Without the options that are too large in any plan."""
    room = _room(problem, limit_bytes, scratch_bytes)
    return [
        np.flatnonzero(node.kept_bytes - node.kept_bytes.min() <= space)
        for node, space in zip(problem.nodes, room, strict=True)
    ]


def _room(problem: Problem, limit_bytes: int, scratch_bytes: int) -> list[Numbers]:
    """By option: what a plan that has it may keep, over the least that the nodes can keep."""
    base = sum(int(node.kept_bytes.min()) for node in problem.nodes)
    low = max(scratch_bytes, *(int(node.scratch_bytes.min()) for node in problem.nodes))
    return [limit_bytes - base - np.maximum(node.scratch_bytes, low) for node in problem.nodes]


def _closer(priced: Priced, fits: NDArray[np.bool_]) -> Array:
    """Prices between the last at which too much is kept and the first at which it is not."""
    prices = priced.prices
    if fits[0]:
        return prices[:1]
    if not fits.any():
        return np.asarray(prices[-1] * FACTORS[FACTORS >= 1])
    b = int(fits.argmax())
    low = max(float(prices[b - 1]), float(prices[b]) * 1e-3)
    between = np.geomspace(low, prices[b], LANES)
    return np.append(between, even(priced, b - 1, b))
