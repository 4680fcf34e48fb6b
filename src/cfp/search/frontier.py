"""The whole frontier of time against memory: the fastest plan for every amount of memory.

The largest scratch of all nodes is taken as a cap. Under a cap scratch does not count, only what is
kept (`curve`), and the answer is the best over all caps:

    frontier = the plans that no other beats, of the curves under all caps (`curves`)

Worth trying as a cap is each scratch that an option needs, from the largest of the nodes' least
ones on. Where these are many they are put into groups: a group has the cap of its largest, which
loses the width of the group. Fewer groups leave more work, so finer buckets, to each.

The least memory that any plan needs is known exactly (`smallest`):

    M = min over the caps S of S + (least kept under S)

Least kept falls with S, so between two caps a < b tried, no cap needs less than the next one over a
plus what is kept under b. Caps are tried side by side, as lanes, where that leaves hope.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cfp.search.curve import Bucketing, FrontierCurve, fastest_of, find_curve, hull
from cfp.search.elimination import Steps, build
from cfp.search.problem import Array, Numbers, Point, frontier_of, points
from cfp.search.prune import prune
from cfp.search.subproblem import Subproblem
from cfp.search.table import backtrack, forward

MOST = 16  # caps: each has its share of the work, and a table of its own
MOST_COARSE = 4  # caps where corners are all that is known: more leave too few corners to each
CAPS = 16  # lanes of one table; all caps of most problems


@dataclass(frozen=True, slots=True)
class Frontier:
    """The fastest plan for every amount of memory: memory rises, time falls. Memory was rounded
    where `slack_bytes` is not zero: for every limit, no plan that needs `limit - slack_bytes` or
    less is faster than the fastest of these within the limit. There is no plan in an empty one."""

    plans: tuple[Point, ...]
    slack_bytes: int


def find_frontier(sub: Subproblem, order: Sequence[int], work: float) -> Frontier:
    """Returns the frontier; `order` is the one in which the nodes are eliminated."""
    small = None if sub.empty else smallest(sub, order)
    if small is None:
        return Frontier((), 0)
    found = list(curves(sub, order, work))
    plans = [small]
    for curve in found:
        plans += points(sub.whole, curve.choices)
    frontier = frontier_of(plans)
    return Frontier(frontier, _slack(frontier, found))


def curves(sub: Subproblem, order: Sequence[int], work: float) -> Iterator[FrontierCurve]:
    """Yields the curves of all plans there are, each with the least scratch of its plans counted.
    Caps go down: if the plans under one need less than the cap, what lies between changes
    nothing."""
    values = sub.scratch_values()
    caps = _caps(sub, order, values, work)
    while caps:
        share = work / len(caps)
        work -= share
        some = prune(sub.under(caps.pop()), scratch=False)
        curve = None if some.empty else find_curve(some, order, share)
        if curve is None:
            return
        used = max(
            int(node.scratch_bytes[options].max())
            for node, options in zip(sub.whole.nodes, curve.choices.T, strict=True)
        )
        caps = [cap for cap in caps if cap < used]
        yield replace(curve, base_bytes=curve.base_bytes + _above(values, caps))


def smallest(sub: Subproblem, order: Sequence[int]) -> Point | None:
    """Returns a plan that needs least memory, not always the fastest such; None: no plan is
    possible."""
    steps = build(sub.problem, order).with_edges(_only_possible)
    values = sub.scratch_values()
    kept = np.full(len(values), np.nan)  # least under each cap, where tried
    best: Point | None = None
    hopeful = np.arange(len(values))
    while len(hopeful):
        ends = np.linspace(0, len(hopeful) - 1, min(CAPS, len(hopeful)))
        tried = hopeful[np.unique(ends.round().astype(np.int64))]
        choices, kept[tried] = _least_kept(sub, steps, values[tried])
        plans = points(sub.whole, sub.numbered(choices))
        best = min([*plans, *([best] if best else [])], key=lambda p: p.memory_bytes, default=None)
        if best is None:
            return None
        hopeful = _hopeful(values, kept, best.memory_bytes)
    return best


def _slack(frontier: tuple[Point, ...], found: list[FrontierCurve]) -> int:
    """Returns how far below its limit the fastest plan on the frontier is known to be the fastest,
    over all limits. Below the first nothing fits; with less memory than a point has, the one before
    is the fastest."""
    times_s = np.array([point.time_s for point in frontier[:-1]])
    memory = np.array([point.memory_bytes for point in frontier[1:]])
    least = np.min([curve.least_bytes(times_s) for curve in found], axis=0)
    return max(0, int((memory - least).max(initial=0)))


def _above(values: Numbers, caps: Sequence[int]) -> int:
    """Returns the least scratch over the caps that are still to come."""
    return int(values[np.searchsorted(values, caps[-1], side="right")] if caps else values[0])


def _caps(sub: Subproblem, order: Sequence[int], values: Numbers, work: float) -> list[int]:
    """Returns the caps, in as many groups as lose least: by the width of a group, and by rounding
    what is kept or, if that is worse, by knowing corners alone."""
    steps = build(sub.problem, order)
    fastest = fastest_of(sub.problem, steps)
    if len(values) == 1 or fastest is None:
        return [int(values[-1])]
    rounding = Bucketing(sub.problem, steps, fastest=fastest)
    gap = hull(sub.problem, steps, work / MOST_COARSE / 2).gap_bytes
    best = math.inf, [int(values[-1])]
    for count in range(1, min(MOST, len(values)) + 1):
        width, caps = _grouped(values, count)
        unit = rounding.unit(work / len(caps))
        error = math.inf if unit is None else rounding.error_bytes(unit)
        if count <= MOST_COARSE:
            error = min(error, gap)
        best = min(best, (width + error, caps))
    return best[1]


def _grouped(values: Numbers, count: int) -> tuple[int, list[int]]:
    """Returns the least width for which `count` groups suffice, and their largest values."""

    def groups(width: int) -> list[int]:
        found = [int(values[-1])]
        while (rest := int(np.searchsorted(values, found[-1] - width))) and len(found) <= count:
            found.append(int(values[rest - 1]))
        return found

    low, high = 0, int(values[-1] - values[0])
    while low < high:
        middle = (low + high) // 2
        if len(groups(middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return low, groups(low)[::-1]


def _only_possible(edge_s: Array) -> Array:
    return np.where(np.isinf(edge_s), np.inf, 0.0)


def _least_kept(sub: Subproblem, steps: Steps, caps: Numbers) -> tuple[Numbers, Array]:
    """Returns the choices that keep least under each cap, where there is one, and what they
    keep."""
    costs = {
        number: np.where(node.scratch_bytes[:, None] <= caps, node.kept_bytes[:, None], np.inf)
        for number, node in sub.problem.distinct_nodes.items()
    }
    by_node = [costs[number] for number in sub.problem.node_numbers]
    tables = forward(steps, by_node, width=len(caps))
    return backtrack(tables, np.flatnonzero(np.isfinite(tables.last))), tables.last


def _hopeful(values: Numbers, kept: Array, least_bytes: int) -> Numbers:
    """Returns the caps not tried that may need less."""
    tried = np.flatnonzero(~np.isnan(kept))
    others = np.flatnonzero(np.isnan(kept))
    above = np.searchsorted(tried, others)  # the highest cap is always tried
    return others[kept[tried[above]] + values[others] < least_bytes]
