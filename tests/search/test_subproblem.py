"""What is left of a problem still has its best plans."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.search import Node, Point, Problem
from cfp.search import prune as pruning
from cfp.search.limit import narrow
from cfp.search.prune import prune
from cfp.search.subproblem import Subproblem, all_of
from tests.search.instances import AWKWARD, best_time, every_plan, frontier, instances


def plans_of(sub: Subproblem) -> set[tuple[int, ...]]:
    """Returns the plans as choices of the whole problem."""
    if sub.empty:
        return set()
    choices = np.array([choice for _, _, choice in every_plan(sub.problem)], dtype=np.int64)
    return set(map(tuple, sub.numbered(choices.reshape(-1, len(sub.places))).tolist()))


# -- pruning ---------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(instances())
def test_pruning_keeps_the_frontier(problem: Problem) -> None:
    plans = every_plan(problem)
    left = plans_of(prune(all_of(problem)))
    assert frontier([plan for plan in plans if plan[2] in left]) == frontier(plans)


@settings(max_examples=50, deadline=None)
@given(instances())
def test_without_scratch_only_what_is_kept_counts(problem: Problem) -> None:
    bare = Problem(
        tuple(Node(n.times_s, n.kept_bytes, n.scratch_bytes * 0) for n in problem.nodes),
        problem.edges,
    )
    plans = every_plan(bare)
    left = plans_of(prune(all_of(problem), scratch=False))
    assert frontier([plan for plan in plans if plan[2] in left]) == frontier(plans)


def chosen(
    times: list[float], kept: list[int], scratch: list[int], rows: list[list[float]]
) -> list[int]:
    """The options left of a node with one neighbour, none of whose options is dropped."""
    edge = np.array(rows)
    options = edge.shape[1]
    other = Node(np.zeros(options), np.arange(options)[::-1].copy(), np.arange(options))
    problem = Problem(
        (Node(np.array(times), np.array(kept), np.array(scratch)), other), {(0, 1): edge}
    )
    return prune(all_of(problem)).options[0].tolist()


FLAT = [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("left", "case"),
    [
        ([0], ([1.0, 2.0], [1, 1], [1, 1], FLAT)),  # slower
        ([0], ([1.0, 1.0], [1, 1], [1, 1], FLAT)),  # equals leave the first
        ([0, 1], ([1.0, 2.0], [1, 0], [1, 1], FLAT)),  # but keeps less
        ([0, 1], ([1.0, 2.0], [1, 1], [1, 0], FLAT)),  # but needs less scratch
        ([0, 1], ([1.0, 2.0], [1, 1], [1, 1], [[0.0, 2.0], [0.0, 0.0]])),  # but may be faster
        ([0], ([1.0, 2.0], [1, 1], [1, 1], [[0.0, 1.0], [0.0, 0.0]])),  # never faster
        ([1], ([1.0, 2.0], [1, 1], [1, 1], [[9.0, 9.0], [0.0, 0.0]])),  # always faster
        ([0, 1], ([1.0, 9.0], [1, 1], [1, 1], [[0.0, np.inf], [0.0, 0.0]])),  # goes where 0 cannot
        ([0], ([1.0, 9.0], [1, 1], [1, 1], [[0.0, 0.0], [0.0, np.inf]])),
        ([1], ([1.0, 9.0], [1, 1], [1, 1], [[np.inf, np.inf], [0.0, 0.0]])),  # 0 cannot be
        ([1], ([np.inf, 9.0], [1, 1], [1, 1], FLAT)),
    ],
)
def test_an_option_goes_only_if_another_replaces_it(
    left: list[int], case: tuple[list[float], list[int], list[int], list[list[float]]]
) -> None:
    assert chosen(*case) == left


def test_an_edge_to_two_nodes_alike_counts_twice() -> None:
    hub = Node(np.array([1.0, 2.5]), np.array([1, 1]), np.array([1, 1]))
    other = Node(np.zeros(2), np.array([1, 0]), np.array([0, 1]))
    edge = np.array([[1.0, 1.0], [0.0, 0.0]])
    for ends, left in ([(0, 1)], [0]), ([(0, 1), (0, 2)], [1]):
        sub = prune(all_of(Problem((hub, other, other), dict.fromkeys(ends, edge))))
        assert sub.options[0].tolist() == left


def test_equal_nodes_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    of_node: Callable[..., object] = pruning._of_node
    monkeypatch.setattr(pruning, "_of_node", lambda *a: calls.append(1) or of_node(*a))
    rng = np.random.default_rng(0)
    layer = (rng.random(9), rng.integers(0, 9, 9), rng.integers(0, 9, 9))
    edge = rng.random((9, 9))
    nodes = tuple(Node(*layer) for _ in range(1000))  # the same arrays, not the same objects
    prune(all_of(Problem(nodes, {(i, i + 1): edge for i in range(999)})))
    assert len(calls) <= 5 * pruning.PASSES  # the ends, those next to them, and the rest


# -- nodes without a choice ------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(instances(), st.data())
def test_contraction_changes_no_figure(problem: Problem, data: st.DataObject) -> None:
    keep = []
    for node in problem.nodes:
        size = len(node.times_s)
        some = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=2))
        keep.append(np.array(sorted(some)))
    before = all_of(problem).take(keep)
    after, order = before.contract(range(len(problem.nodes)))
    assert sorted(order) == list(range(len(after.places)))
    assert len(after.places) == max(1, sum(len(some) > 1 for some in keep))
    assert plans_of(after) == plans_of(before)
    for time_s, memory_bytes, choice in every_plan(after.problem):
        whole = after.numbered(np.array([choice]))[0].tolist()
        assert problem.time_s(whole) == time_s
        assert problem.memory_bytes(whole) == memory_bytes


# -- bounds by price -------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(instances(AWKWARD), st.data())
def test_narrowing_keeps_all_faster_plans(problem: Problem, data: st.DataObject) -> None:
    plans = every_plan(problem)
    sizes = [0, *(int(n.scratch_bytes.max()) for n in problem.nodes)]
    low = data.draw(st.sampled_from(sizes))
    for _, limit in frontier(plans):
        slowest = max((p for p in plans if p[1] <= limit), key=lambda plan: plan[0])
        whole = all_of(problem)
        sub, order, best = narrow(whole, range(len(whole.places)), limit, low, Point(*slowest))
        assert best.memory_bytes <= limit
        assert sorted(order) == list(range(len(sub.places)))
        faster = [p for p in plans if p[0] < best.time_s and max(_scratch(problem, p[2])) >= low]
        if best_time(faster, limit) < math.inf:  # pruned, so perhaps another, but one as fast
            left = plans_of(sub)
            mine = [plan for plan in plans if plan[2] in left]
            assert best_time(mine, limit) <= best_time(faster, limit)


def _scratch(problem: Problem, choice: tuple[int, ...]) -> list[int]:
    return [int(n.scratch_bytes[c]) for n, c in zip(problem.nodes, choice, strict=True)]
