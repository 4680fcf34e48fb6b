"""What the search answers: plans, with their exact figures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cfp.search.problem import Numbers, Problem


@dataclass(frozen=True, slots=True)
class Point:
    """A plan: the option of each node, and what it costs."""

    time_s: float
    memory_bytes: int
    choice: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """`best` is the fastest plan within the limit; None: nothing fits, or no plan is possible.

    `frontier` is the fastest plan for every amount of memory: memory rises, time falls. Memory was
    rounded where `slack_bytes` is not zero: no plan that needs `limit - slack_bytes` or less is
    faster than `best`. For a limit anywhere on the frontier `frontier_slack_bytes` says the same.
    """

    best: Point | None
    frontier: tuple[Point, ...]
    slack_bytes: int
    frontier_slack_bytes: int


def points(problem: Problem, choices: Numbers) -> list[Point]:
    """Those of the choices that are possible."""
    times_s, memory_bytes = problem.figures(choices)
    rows = map(tuple, choices.tolist())
    found = map(Point, times_s, memory_bytes, rows)
    return [point for point in found if math.isfinite(point.time_s)]


def frontier_of(plans: Iterable[Point]) -> tuple[Point, ...]:
    """Those that no other beats in time and in memory; of equals the first by choice."""
    found: list[Point] = []
    for plan in sorted(plans, key=lambda p: (p.memory_bytes, p.time_s, p.choice)):
        if not found or plan.time_s < found[-1].time_s:
            found.append(plan)
    return tuple(found)


def best_of(plans: Iterable[Point], limit_bytes: int) -> Point | None:
    """The fastest within the limit; of equals that of least memory, then the first by choice."""
    fitting = (plan for plan in plans if plan.memory_bytes <= limit_bytes)
    return min(fitting, key=lambda p: (p.time_s, p.memory_bytes, p.choice), default=None)
