"""The fastest plans that really differ, for those who measure more than one.

Of 50 layers, the second-best plan may differ from the best in one: that is no alternative. Here a
plan differs from another by an option of a kind that it does not use anywhere. The search is best
first: from the best plan follow those that forbid one (kind, option) that it uses, for each of
them, and so on from the fastest plan not followed yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from cfp.search.problem import Node, Problem
from cfp.search.solution import Point
from cfp.search.solve import solve

Used = tuple[int, int]  # a kind, and the number of an option


def alternatives(
    problem: Problem, limit_bytes: int | None, count: int, kinds: Sequence[int]
) -> list[Point]:
    """At most `count` plans within the limit, the fastest first; `kinds` are those of the nodes."""
    found: list[Point] = []
    seen: set[tuple[int, ...]] = set()
    tried: set[frozenset[Used]] = set()
    waiting: list[tuple[float, tuple[int, ...], Point, frozenset[Used]]] = []

    def follow(forbidden: frozenset[Used]) -> None:
        if forbidden in tried:
            return
        tried.add(forbidden)
        best = solve(_without(problem, kinds, forbidden), limit_bytes).best
        if best is not None:
            heapq.heappush(waiting, (best.time_s, best.choice, best, forbidden))

    follow(frozenset())
    while waiting and len(found) < count:
        _, choice, best, forbidden = heapq.heappop(waiting)
        if choice not in seen:
            seen.add(choice)
            found.append(best)
        for used in dict.fromkeys(zip(kinds, choice, strict=True)) if len(found) < count else ():
            follow(forbidden | {used})
    return found


def _without(problem: Problem, kinds: Sequence[int], forbidden: frozenset[Used]) -> Problem:
    """Forbidden options take forever. Nodes that shared their arrays still do."""
    if not forbidden:
        return problem
    made: dict[tuple[int, int], Node] = {}
    nodes = []
    for kind, node in zip(kinds, problem.nodes, strict=True):
        key = (kind, id(node))
        if key not in made:
            times = node.times_s.copy()
            times[[option for of, option in forbidden if of == kind]] = np.inf
            made[key] = Node(times, node.kept_bytes, node.scratch_bytes)
        nodes.append(made[key])
    return Problem(tuple(nodes), problem.edges)
