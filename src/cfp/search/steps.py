"""The walk as arrays: how states lead to states.

A step visits one node. It takes the states before, adds the edges to the node (`edge_s`; options
that all the frontier sees alike share a column), and forgets what no later node will see: states
that differ in nothing else are one group, of which the best counts. What is left of the node is
the class of its option:

    state after = group * classes + class
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cfp.search.problem import Array, Numbers, Problem
from cfp.search.walk import Classes, Sight, Visit, Walk


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    edge_s: Array  # [columns, states], the states in order of their group
    members: Numbers  # the states in order of their group
    starts: Numbers  # where each group begins in it
    largest: int  # states of the largest group
    in_order: bool  # the states already are
    seen: Classes  # columns
    left: Classes
    by_seen: tuple[Numbers, Numbers]  # the options in order, and where each column begins
    by_left: tuple[Numbers, Numbers]

    @property
    def columns(self) -> int:
        return self.seen.count

    @property
    def groups(self) -> int:
        return len(self.starts)

    @property
    def work(self) -> int:
        """Elementary operations for each bucket."""
        return self.edge_s.size + self.groups * len(self.seen.of)

    @property
    def cells(self) -> int:
        """Numbers stored for each bucket."""
        return self.columns * self.groups


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    order: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def most_states(self) -> int:
        return max((len(step.members) for step in self.steps), default=1)


def build(problem: Problem, order: Sequence[int]) -> Steps:
    """Equal visits of equal nodes share their step."""
    sight = Sight(problem)
    walk = Walk(sight)
    known: dict[object, Step] = {}
    steps = []
    for node in order:
        visit = walk.visit(node)
        key = (id(visit.seen), id(visit.after.get(node)), _key(problem, visit, node))
        if key not in known:
            known[key] = _step(sight, visit, node)
        steps.append(known[key])
    return Steps(tuple(order), tuple(steps))


def _key(problem: Problem, visit: Visit, node: int) -> tuple[object, ...]:
    return tuple(
        (
            id(classes),
            id(visit.after.get(i)),
            i < node,
            id(problem.edges.get((min(i, node), max(i, node)))),
        )
        for i, classes in visit.before.items()
    )


def _step(sight: Sight, visit: Visit, node: int) -> Step:
    shape = tuple(classes.count for classes in visit.before.values())
    edge_s = np.zeros((visit.seen.count, *shape))
    group = np.zeros(shape, dtype=np.int64)
    for axis, (i, classes) in enumerate(visit.before.items()):
        broad = [1] * len(shape)
        broad[axis] = classes.count
        if node in sight.near[i]:
            edge = sight.edge(i, classes.first, node, visit.seen.first)
            edge_s += edge.T.reshape(-1, *broad)
        if i in visit.after:
            group *= visit.after[i].count
            group += visit.after[i].of[classes.first].reshape(broad)
    flat = group.reshape(-1)
    members = np.argsort(flat, kind="stable")
    groups = math.prod(c.count for i, c in visit.after.items() if i != node)
    left = visit.after.get(node, sight.classes(node, ()))
    return Step(
        edge_s=np.ascontiguousarray(edge_s.reshape(visit.seen.count, -1)[:, members]),
        members=members,
        starts=np.searchsorted(flat[members], np.arange(groups)),
        largest=int(np.bincount(flat).max()),
        in_order=bool((np.diff(flat) >= 0).all()),
        seen=visit.seen,
        left=left,
        by_seen=_together(visit.seen),
        by_left=_together(left),
    )


def _together(classes: Classes) -> tuple[Numbers, Numbers]:
    order = np.argsort(classes.of, kind="stable")
    return order, np.searchsorted(classes.of[order], np.arange(classes.count))
