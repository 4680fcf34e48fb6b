"""The next best plans: in order, really different, none left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.search import Node, Problem, Solver, alternatives
from tests.search.instances import AWKWARD, Plan, every_plan, instances

Telling = Callable[[Plan], set[tuple[int, int]]]  # the pairs that tell a plan apart


def one_after_the_other(
    plans: list[Plan], limit: float, count: int, used: Telling, tell: Telling | None = None
) -> list[float]:
    """Returns the plans by the definition: for each plan found, the next one does without a pair
    that tells it."""
    found: list[Plan] = []
    left = sorted(plan for plan in plans if plan[1] <= limit)
    while left and len(found) < count:
        found.append(left[0])
        mine = (tell or used)(left[0])
        left = [plan for plan in left if not mine <= used(plan)]
    return [time_s for time_s, _, _ in found]


def by_option(kinds: list[int]) -> Telling:
    return lambda plan: set(zip(kinds, plan[2], strict=True))


@st.composite
def with_kinds(draw: st.DrawFn, largest_bytes: int) -> tuple[Problem, list[int]]:
    """Nodes of a kind have equally many options; what they cost may differ."""
    problem = draw(instances(largest_bytes))
    kinds = [
        10 * len(node.times_s) + draw(st.integers(0, 1), label=f"kind of {i}")
        for i, node in enumerate(problem.nodes)
    ]
    return problem, kinds


def distinct_times(problem: Problem) -> Problem:
    """Which of two equally fast plans comes first would change what comes after."""
    rng = np.random.default_rng(len(problem.nodes))
    nodes = tuple(
        Node(n.times_s + rng.random(len(n.times_s)) / 8, n.kept_bytes, n.scratch_bytes)
        for n in problem.nodes
    )
    return Problem(nodes, problem.edges)


@settings(max_examples=60, deadline=None)
@given(with_kinds(8), st.one_of(st.none(), st.integers(5, 60)), st.integers(1, 12))
def test_none_is_left_out(case: tuple[Problem, list[int]], limit: int | None, count: int) -> None:
    problem, kinds = distinct_times(case[0]), case[1]
    found = alternatives(Solver(problem), limit, count, kinds)
    top = math.inf if limit is None else limit
    wanted = one_after_the_other(every_plan(problem), top, count, by_option(kinds))
    assert [plan.time_s for plan in found] == pytest.approx(wanted, rel=1e-12)
    for plan in found:
        assert plan.memory_bytes == problem.memory_bytes(plan.choice) <= top
        assert plan.time_s == problem.time_s(plan.choice)
    assert len({plan.choice for plan in found}) == len(found)
    fastest = Solver(problem).fastest(limit)
    assert ([] if fastest is None else [fastest.plan]) == found[:1]


@settings(max_examples=30, deadline=None)
@given(with_kinds(AWKWARD), st.floats(0.3, 1))
def test_within_a_limit_of_any_size(case: tuple[Problem, list[int]], share: float) -> None:
    problem, kinds = distinct_times(case[0]), case[1]
    plans = every_plan(problem)
    limit = int(share * max((memory for _, memory, _ in plans), default=0))
    found = alternatives(Solver(problem), limit, 5, kinds)
    wanted = one_after_the_other(plans, limit, 5, by_option(kinds))
    assert [plan.time_s for plan in found] == pytest.approx(wanted, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(with_kinds(8), st.one_of(st.none(), st.integers(5, 60)), st.floats(0, 0.7))
def test_others_differ_in_what_takes_a_share_of_the_time(
    case: tuple[Problem, list[int]], limit: int | None, share: float
) -> None:
    problem, kinds = distinct_times(case[0]), case[1]
    ways = [[at // 2 for at in range(len(node.times_s))] for node in problem.nodes]

    def used(plan: Plan) -> set[tuple[int, int]]:
        return {(kind, at // 2) for kind, at in zip(kinds, plan[2], strict=True)}

    def tell(plan: Plan) -> set[tuple[int, int]]:
        spent: dict[tuple[int, int], float] = {}
        for node, kind, at in zip(problem.nodes, kinds, plan[2], strict=True):
            spent[kind, at // 2] = spent.get((kind, at // 2), 0.0) + node.times_s[at]
        large = {pair for pair, time_s in spent.items() if time_s >= share * plan[0]}
        return large or set(spent)

    found = alternatives(Solver(problem), limit, 6, kinds, ways=ways, share=share)
    top = math.inf if limit is None else limit
    wanted = one_after_the_other(every_plan(problem), top, 6, used, tell)
    assert [plan.time_s for plan in found] == pytest.approx(wanted, rel=1e-12)


def test_what_takes_little_time_makes_no_alternative() -> None:
    """The embedding could lie in three ways; that would tell nothing of the layers."""
    nothing = np.zeros(3, dtype=np.int64)
    embedding = Node(np.array([0.1, 0.2, 0.3]), nothing, nothing)
    layer = Node(np.array([4.0, 4.5, 5.0]), nothing, nothing)
    problem = Problem((embedding, layer, layer), {})
    found = alternatives(Solver(problem), None, 9, [0, 1, 1], share=0.2)
    assert [plan.choice for plan in found] == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]
    ways = [[0, 1, 2]] + [[0, 0, 1]] * 2
    alike = alternatives(Solver(problem), None, 9, [0, 1, 1], ways=ways, share=0.2)
    assert [plan.choice for plan in alike] == [(0, 0, 0), (0, 2, 2)]


def test_swapped_layers_are_no_alternative() -> None:
    layer = Node(np.array([1.0, 2.0, 5.0]), np.array([4, 2, 0]), np.array([0, 0, 0]))
    problem = Problem((layer,) * 3, {})
    found = alternatives(Solver(problem), 8, 10, [7, 7, 7])
    # without 0 or 1; then without 1, and then without 0 or 2 as well
    wanted = [[0, 1, 1], [1, 1, 1], [0, 0, 2], [2, 2, 2]]
    assert [sorted(plan.choice) for plan in found] == wanted


def test_many_layers_and_few_kinds_are_fast_enough() -> None:
    rng = np.random.default_rng(0)
    kinds = [0, *[1, 2] * 49, 3]
    made = [
        Node(rng.uniform(1, 3, 27), rng.integers(0, AWKWARD, 27), rng.integers(0, AWKWARD, 27))
        for _ in range(4)
    ]
    shapes = {pair: rng.uniform(0, 1, (27, 27)) for pair in itertools.pairwise(kinds)}
    edges = {(i, i + 1): shapes[pair] for i, pair in enumerate(itertools.pairwise(kinds))}
    problem = Problem(tuple(made[kind] for kind in kinds), edges)
    solver = Solver(problem, work=1e6)
    found = alternatives(solver, None, 8, kinds)
    assert len(found) == 8
    assert found[0] == solver.frontier().plans[-1]
    assert [plan.time_s for plan in found] == sorted(plan.time_s for plan in found)


def test_there_may_be_fewer_or_none() -> None:
    node = Node(np.array([1.0, 2.0]), np.array([1, 0]), np.array([0, 0]))
    problem = Problem((node,), {})
    assert [plan.choice for plan in alternatives(Solver(problem), None, 9, [0])] == [(0,), (1,)]
    assert [plan.choice for plan in alternatives(Solver(problem), 0, 9, [0])] == [(1,)]
    assert alternatives(Solver(Problem((node,), {})), None, 0, [0]) == []
    never = Problem((node, node), {(0, 1): np.full((2, 2), np.inf)})
    assert alternatives(Solver(never), None, 3, [0, 0]) == []
    with pytest.raises(ValueError, match="`kinds`"):
        alternatives(Solver(problem), None, 1, [0, 0])
    with pytest.raises(ValueError, match="`ways`"):
        alternatives(Solver(problem), None, 1, [0], ways=[[0, 1, 2]])
