"""The best plan and the next ones that really differ from it.

Occurrences of one kind are alike, and a plan that swaps two of them is no other plan. So a plan is
told from another by the pairs (kind, option) that it uses, and after the plans p1, p2, ... comes

    the fastest plan that, of each of them, does without some pair it uses

Best first: each plan found is expanded into the fastest plans that do without one more of its
pairs. Those are problems that differ in the times of their options and are solved side by side.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from cfp.search.limit import fastest_within
from cfp.search.order import best_order
from cfp.search.part import Part, all_of
from cfp.search.problem import Problem
from cfp.search.prune import prune
from cfp.search.smallest import smallest
from cfp.search.solution import Point, points
from cfp.search.solve import solve
from cfp.search.steps import build
from cfp.search.table import backtrack, forward

WORK = 3e7
LANES = 64

Pairs = frozenset[tuple[int, int]]


def alternatives(
    problem: Problem, limit_bytes: int | None, count: int, kinds: Sequence[int]
) -> list[Point]:
    """At most `count` plans within the limit, fastest first; `kinds[i]` is the kind of node i."""
    problem.check()
    if len(kinds) != len(problem.nodes):
        raise ValueError(f"`kinds` must be {len(problem.nodes)}, one of each node.")
    without = _Without(problem, limit_bytes, kinds)
    best = without.fastest([frozenset()])[0]
    if limit_bytes is not None:
        best = solve(problem, limit_bytes).best
    if best is None:
        return []
    heap: list[tuple[float, tuple[int, ...], list[tuple[int, int]], Point]] = [_entry(best, frozenset())]
    ...
