"""The fastest plan within a memory limit, and the whole frontier of time against memory.

Exact for any graph. `prune` drops options that no plan needs; `order` and `walk` eliminate the
nodes one by one; `table` is the dynamic program over states and buckets of memory; `buckets`
rounds memory, `levels` takes scratch as a cap; `limit` sharpens the answer at the limit; `smallest`
knows what fits at all.
"""

from __future__ import annotations

import numpy as np

from cfp.search.levels import Level, levels
from cfp.search.limit import fastest_within
from cfp.search.order import best_order
from cfp.search.part import all_of
from cfp.search.problem import Problem
from cfp.search.prune import prune
from cfp.search.smallest import smallest
from cfp.search.solution import Point, Solution, best_of, frontier_of, points

WORK = 4e8


def solve(problem: Problem, limit_bytes: int | None = None, *, work: float = WORK) -> Solution:
    """`work` is about how many elementary operations to spend on each of the two, the frontier and
    the limit; a thousand million take one or two seconds."""
    problem.check()
    part = prune(all_of(problem))
    nothing = Solution(None, (), 0, 0)
    if part.empty:
        return nothing
    order = best_order(part.problem)
    small = smallest(part, order)
    if small is None:
        return nothing
    found = list(levels(part, order, work))
    plans = [small]
    for level in found:
        plans += points(problem, level.curve.choices)
    best, slack = None, 0
    if limit_bytes is not None:
        best = best_of(plans, limit_bytes)
        if best is not None:
            best, slack = fastest_within(part, order, limit_bytes, best, work)
            plans.append(best)
    frontier = frontier_of(plans)
    if limit_bytes is None:
        best = frontier[-1]
    everywhere = _slack(frontier, found)  # at this limit too: `best` is no slower than the frontier
    return Solution(best, frontier, min(slack, everywhere), everywhere)


def _slack(frontier: tuple[Point, ...], found: list[Level]) -> int:
    """Over all limits: how far below it the fastest plan on the frontier is known to be so. Below
    the first nothing fits; with less memory than a point has, the one before is the fastest."""
    times_s = np.array([point.time_s for point in frontier[:-1]])
    memory = np.array([point.memory_bytes for point in frontier[1:]])
    least = np.min([level.least_bytes(times_s) for level in found], axis=0)
    return max(0, int((memory - least).max(initial=0)))
