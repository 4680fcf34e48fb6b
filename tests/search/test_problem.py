"""What a choice costs, and which problems are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from cfp.search import Node, Problem
from tests.search.instances import every_plan, instances


def node(
    times: list[float], kept: list[int] | None = None, scratch: list[int] | None = None
) -> Node:
    zeros = [0] * len(times)
    return Node(np.array(times), np.array(kept or zeros), np.array(scratch or zeros))


@settings(max_examples=30, deadline=None)
@given(instances())
def test_figures_are_those_of_the_definition(problem: Problem) -> None:
    for time_s, memory_bytes, choice in every_plan(problem):
        assert problem.time_s(choice) == time_s
        assert problem.memory_bytes(choice) == memory_bytes


def test_sums_do_not_depend_on_their_order() -> None:
    times = [0.1, 0.2, 0.3, 1e9, 0.7]
    one = Problem(tuple(node([t]) for t in times), {})
    other = Problem(tuple(node([t]) for t in sorted(times)), {})
    assert one.time_s([0] * 5) == other.time_s([0] * 5)


TWO = (node([1.0, 2.0]), node([1.0, 2.0, 3.0]))
EDGE = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Problem((), {}), "one or more"),
        (Problem((node([]),), {}), "one or more options"),
        (Problem((node([-1.0]),), {}), "zero or more"),
        (Problem((node([np.nan]),), {}), "zero or more"),
        (Problem((Node(np.array([1]), np.array([1]), np.array([1])),), {}), "float64"),
        (Problem((Node(np.ones(2), np.array([1]), np.array([1, 1])),), {}), "kept_bytes"),
        (Problem((Node(np.ones(1), np.array([1]), np.array([0.5])),), {}), "scratch_bytes"),
        (Problem((node([1.0], [-1]),), {}), "kept_bytes must not be negative"),
        (Problem((node([1.0], [1], [-1]),), {}), "scratch_bytes must not be negative"),
        (Problem(TWO, {(1, 0): EDGE.T}), "the earlier one first"),
        (Problem(TWO, {(0, 2): EDGE}), "join two nodes"),
        (Problem(TWO, {(0, 1): EDGE.T}), r"must be \(2, 3\)"),
        (Problem(TWO, {(0, 1): EDGE - 1}), "zero or more"),
        (Problem(TWO, {(0, 1): EDGE * np.nan}), "zero or more"),
    ],
)
def test_what_is_no_problem_says_why(problem: Problem, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problem.check()


def test_infinite_times_are_no_mistake() -> None:
    Problem(TWO, {(0, 1): EDGE + np.inf}).check()
