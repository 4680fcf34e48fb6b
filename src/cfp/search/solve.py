"""The answers to one problem: its fastest plan within a limit, and its whole frontier.

Both are exact for any graph, as far as their slack says. What is found out once is kept: the
fastest plan within a limit starts from the frontier, and the alternatives to it (`alternatives`)
start from the fastest plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cfp.search.curve import fastest_of
from cfp.search.elimination import best_order, build
from cfp.search.frontier import Frontier, find_frontier
from cfp.search.limit import fastest_within
from cfp.search.problem import Point, Problem, best_of, points
from cfp.search.prune import prune
from cfp.search.subproblem import all_of

WORK = 4e8  # elementary operations for each answer: half a second; twice that is felt by who waits


@dataclass(frozen=True, slots=True)
class Fastest:
    """A plan within a limit. Memory was rounded where `slack_bytes` is not zero: no plan that needs
    `limit - slack_bytes` or less is faster."""

    plan: Point
    slack_bytes: int


class Solver:
    """What is known of a problem. `work` is about how many elementary operations to spend on each
    answer; a thousand million take one or two seconds."""

    def __init__(self, problem: Problem, *, work: float = WORK) -> None:
        problem.check()
        self.problem = problem
        self.sub = prune(all_of(problem))
        self._work = work
        self._order = () if self.sub.empty else best_order(self.sub.problem)
        self._frontier: Frontier | None = None
        self._fastest: dict[int | None, Fastest | None] = {}

    def frontier(self) -> Frontier:
        """Returns the fastest plan for every amount of memory."""
        if self._frontier is None:
            self._frontier = find_frontier(self.sub, self._order, self._work)
        return self._frontier

    def fastest(self, limit_bytes: int | None) -> Fastest | None:
        """Returns the fastest plan within the limit; None: nothing fits, or no plan is possible."""
        if limit_bytes not in self._fastest:
            found = self._anywhere() if limit_bytes is None else self._within(limit_bytes)
            self._fastest[limit_bytes] = found
        return self._fastest[limit_bytes]

    def _anywhere(self) -> Fastest | None:
        sub = self.sub
        if sub.empty:
            return None
        choice = fastest_of(sub.problem, build(sub.problem, self._order))
        if choice is None:
            return None
        (plan,) = points(self.problem, sub.numbered(np.array([choice])))
        return Fastest(plan, 0)

    def _within(self, limit_bytes: int) -> Fastest | None:
        frontier = self.frontier()
        had = best_of(frontier.plans, limit_bytes)
        if had is None:
            return None
        plan, slack = fastest_within(self.sub, self._order, limit_bytes, had, self._work)
        # the plan is no slower than the frontier, so what holds there at every limit holds here
        return Fastest(plan, min(slack, frontier.slack_bytes))
