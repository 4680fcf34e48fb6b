"""Elimination node by node: the same least costs as trying everything, in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.search import Problem
from cfp.search.curve import Bucketing, curve_within, find_curve, hull
from cfp.search.elimination import Sight, Walk, best_order, build
from cfp.search.frontier import curves
from cfp.search.problem import Node
from cfp.search.subproblem import all_of
from cfp.search.table import backtrack, forward, marginals
from tests.search.instances import AWKWARD, every_choice, every_plan, instances


@st.composite
def ordered(draw: st.DrawFn, largest_bytes: int = 8) -> tuple[Problem, list[int]]:
    problem = draw(instances(largest_bytes))
    return problem, draw(st.permutations(range(len(problem.nodes))))


def kept(problem: Problem, choice: tuple[int, ...]) -> int:
    return sum(int(n.kept_bytes[c]) for n, c in zip(problem.nodes, choice, strict=True))


@settings(max_examples=80, deadline=None)
@given(ordered())
def test_a_table_by_bytes_is_exact_in_any_order(case: tuple[Problem, list[int]]) -> None:
    problem, order = case
    steps = build(problem, order)
    costs = [node.times_s[:, None] for node in problem.nodes]
    width = sum(int(node.kept_bytes.max()) for node in problem.nodes) + 1
    tables = forward(steps, costs, [node.kept_bytes for node in problem.nodes], width)
    least = np.full(width, np.inf)
    for time_s, _, choice in every_plan(problem):
        least[kept(problem, choice)] = min(least[kept(problem, choice)], time_s)
    assert tables.last.tolist() == least.tolist()
    at = np.flatnonzero(np.isfinite(least))
    for bucket, choice in zip(at.tolist(), backtrack(tables, at).tolist(), strict=True):
        assert kept(problem, tuple(choice)) == bucket
        assert problem.time_s(choice) == least[bucket]


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_unequal_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = [Node(rng.random(4), rng.integers(0, 3, 4), np.zeros(4, np.int64)) for _ in range(4)]
    lies = np.array([0, 1, 1, 1])  # of four states, three become one
    edges = {
        (0, 1): rng.random((4, 4)),
        (0, 2): rng.random((4, 4))[lies],
        (1, 3): rng.random((4, 4)),
    }
    problem = Problem(tuple(nodes), edges)
    tables = forward(
        build(problem, range(4)),
        [node.times_s[:, None] for node in nodes],
        [node.kept_bytes for node in nodes],
        9,
    )
    at = np.flatnonzero(np.isfinite(tables.last))
    for bucket, choice in zip(at.tolist(), backtrack(tables, at).tolist(), strict=True):
        assert kept(problem, tuple(choice)) == bucket
        assert problem.time_s(choice) == pytest.approx(tables.last[bucket], rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(ordered())
def test_marginals_are_the_least_cost_with_an_option(case: tuple[Problem, list[int]]) -> None:
    problem, order = case
    lanes = np.array([0.0, 1.0, 3.0])
    costs = [node.times_s[:, None] + node.kept_bytes[:, None] * lanes for node in problem.nodes]
    found = marginals(forward(build(problem, order), costs, width=3))
    wanted = [np.full((len(node.times_s), 3), np.inf) for node in problem.nodes]
    for time_s, _, choice in every_plan(problem):
        for node, option in enumerate(choice):
            least = time_s + lanes * kept(problem, choice)
            wanted[node][option] = np.minimum(wanted[node][option], least)
    for mine, true in zip(found, wanted, strict=True):
        assert mine.tolist() == true.tolist()


# -- rounding --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(instances(AWKWARD), st.floats(1, 5))
def test_rounding_goes_up_and_loses_no_more_than_it_says(problem: Problem, digits: float) -> None:
    rounding = Bucketing(problem, build(problem, range(len(problem.nodes))))
    buckets = rounding.buckets(10**digits, 1e-9)
    if buckets is None:
        return
    for choice in every_choice(problem):
        shifts = sum(int(s[c]) for s, c in zip(buckets.shifts, choice, strict=True))
        rounded = rounding.base_bytes + buckets.unit_bytes * shifts
        assert kept(problem, choice) <= rounded <= kept(problem, choice) + buckets.error_bytes
        assert shifts < buckets.width


def chain(kinds: list[list[int]]) -> Problem:
    nodes = [Node(np.arange(len(k), 0.0, -1), np.array(k), np.array(k) * 0) for k in kinds]
    return Problem(tuple(nodes), {})


def rounded(problem: Problem, work: float) -> tuple[int, int]:
    buckets = Bucketing(problem, build(problem, range(len(problem.nodes)))).buckets(work, 1e-9)
    assert buckets is not None
    return buckets.unit_bytes, buckets.error_bytes


def test_nothing_is_lost_where_the_divisor_is_affordable() -> None:
    problem = chain([[1000, 1064, 1128], [5, 37, 5 + 96]] * 10)
    assert rounded(problem, 1e9) == (32, 0)
    unit, error = rounded(problem, 1e3)
    assert unit > 32
    assert error > 0


def test_a_unit_that_suits_few_kinds_is_found() -> None:
    problem = chain([[0, 10**9 + 1, 3 * 10**9]] * 100)
    unit, error = rounded(problem, 3e5)
    assert unit > 10**7
    assert error < 100 * unit / 20


@settings(max_examples=60, deadline=None)
@given(instances(AWKWARD), st.floats(0, 1), st.floats(1, 4))
def test_what_a_curve_says_of_all_plans_holds(
    problem: Problem, share: float, digits: float
) -> None:
    """It holds for the plans that keep no more than a limit, and for all."""
    plans = every_plan(problem)
    sub, order = all_of(problem), range(len(problem.nodes))
    most = max((kept(problem, choice) for _, _, choice in plans), default=0)
    limit = int(share * most)
    within = curve_within(sub, order, 10**digits, limit, limit)
    whole = find_curve(sub, order, 10**digits)
    assert (whole is None) == (not plans)
    for time_s, _, choice in plans:
        faster_than = np.array([time_s + 1e-6])
        assert whole is not None
        assert whole.least_bytes(faster_than)[0] <= kept(problem, choice) + 1e-3
        if kept(problem, choice) <= limit:
            assert within is not None
            assert within.least_bytes(faster_than)[0] <= kept(problem, choice)
    if within is not None and within.known:
        assert all(problem.memory_bytes(choice) <= limit for choice in within.choices.tolist())


@settings(max_examples=60, deadline=None)
@given(instances(AWKWARD), st.floats(1, 4))
def test_what_the_curves_of_all_caps_say_of_all_plans_holds(
    problem: Problem, digits: float
) -> None:
    plans = every_plan(problem)
    found = list(curves(all_of(problem), range(len(problem.nodes)), 10**digits))
    assert bool(found) == bool(plans)
    times_s = np.array([time_s for time_s, _, _ in plans]) + 1e-6
    memory = np.array([memory for _, memory, _ in plans])
    if plans:
        assert (np.min([lv.least_bytes(times_s) for lv in found], axis=0) <= memory + 1e-3).all()


# -- what prices tell ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(instances(AWKWARD))
def test_the_hull_bounds_all_plans_and_touches_some(problem: Problem) -> None:
    plans = every_plan(problem)
    if not plans:
        return
    found = hull(problem, build(problem, range(len(problem.nodes))), 1e9)
    base = sum(int(node.kept_bytes.min()) for node in problem.nodes)
    for time_s, _, choice in plans:
        faster_than = np.array([time_s * (1 + 1e-9) + 1e-9])
        assert kept(problem, choice) - base >= found.least_over(faster_than)[0] - 1
    points = sorted((kept(problem, c), t) for t, _, c in plans)
    corners = {(kept(problem, tuple(c)), problem.time_s(c)) for c in found.choices.tolist()}
    for memory, time_s in corners:
        assert not any(m <= memory and t < time_s for m, t in points)
    assert {t for _, t in corners} >= {min(t for _, t in points)}


# -- the order -------------------------------------------------------------------------------------


def layered(edges: list[tuple[int, int]], nodes: int, options: int = 6) -> Problem:
    rng = np.random.default_rng(0)
    node = Node(rng.random(options), np.zeros(options, np.int64), np.zeros(options, np.int64))
    return Problem((node,) * nodes, {edge: rng.random((options, options)) for edge in edges})


def most_states(problem: Problem, order: Iterable[int]) -> int:
    sight = Sight(problem)
    walk = Walk(sight)
    return max(sight.states(walk.visit(node).after) for node in order)


def test_nested_skips_are_walked_from_both_ends() -> None:
    chained = [(i, i + 1) for i in range(19)]
    problem = layered([*chained, *((i, 19 - i) for i in range(9))], 20)
    assert most_states(problem, range(20)) == 6**10
    assert most_states(problem, best_order(problem)) <= 6**3


def test_a_tensor_that_all_read_is_remembered_beside_the_last() -> None:
    chained = [(i, i + 1) for i in range(1, 29)]
    problem = layered([*chained, *((0, i) for i in range(2, 30))], 30)
    assert most_states(problem, best_order(problem)) == 36


def test_nodes_apart_need_no_memory() -> None:
    assert most_states(layered([], 50), best_order(layered([], 50))) == 1


@pytest.mark.parametrize("lies", [1, 2, 3])
def test_options_that_lie_alike_are_one_state(lies: int) -> None:
    rng = np.random.default_rng(0)
    options = 12
    node = Node(rng.random(options), rng.integers(0, 9, options), rng.integers(0, 9, options))
    cost = rng.random((lies, lies))
    where = np.arange(options) % lies
    edge = cost[np.ix_(where, where)]
    problem = Problem((node,) * 4, {(0, 1): edge, (1, 2): edge, (2, 3): edge, (0, 3): edge})
    steps = build(problem, range(4))
    assert max(len(step.members) for step in steps.distinct) == lies**2
    assert max(step.columns for step in steps.steps) <= lies**2
    assert math.prod(len(n.times_s) for n in problem.nodes) == options**4
