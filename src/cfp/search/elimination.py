"""The nodes are eliminated one by one: in which order, and what must be remembered on the way.

The nodes that were visited and have neighbours still to come are the frontier. What is remembered
of each is its option as far as the neighbours to come can tell, which is its class. Options whose
edge rows to all of them are equal are one class; resharding depends on how a tensor lies and on
nothing else, so classes are few. A state is a class for each node of the frontier (`Walk`).

Any order gives the same answer; `best_order` looks for the one that takes least work.

A `Step` is the visit of one node as arrays. It takes the states before, adds the edges to the node
(`edge_s`; options that all the frontier sees alike share a column), and forgets what no later node
will see: states that differ in nothing else are one group, of which the best counts. What is left
of the node is the class of its option:

    state after = group * classes + class
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cfp.search.problem import Array, Numbers, Problem

LOOKED_AT = 16  # nodes: beside a hub with a thousand neighbours, looking at all takes n² / 2 looks


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes of options that need not be told apart any further."""

    of: Numbers  # option -> class
    first: Numbers  # class -> its first option

    @property
    def count(self) -> int:
        return len(self.first)


Frontier = dict[int, int]  # node -> the number of its classes (`Sight.classes`)


class Sight:
    """What the neighbours of a node see of its options. Everything is found out once, and has a
    number: `classes[near[a][b]]` are the options of node a that b tells apart."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.classes: list[Classes] = []
        self.near: list[dict[int, int]] = [{} for _ in problem.nodes]
        self._known: dict[object, int] = {}
        for (i, j), edge in problem.edges.items():
            for a, b, rows in ((i, j, edge), (j, i, edge.T)):
                key = (problem.edge_numbers[i, j], a > b)
                if key not in self._known:
                    self._add(key, (row.tobytes() for row in np.ascontiguousarray(rows)))
                self.near[a][b] = self._known[key]

    def common(self, node: int, seen: Iterable[int]) -> int:
        """Returns the number of the classes that all of `seen` together tell apart."""
        distinct = frozenset(seen)
        options = len(self.problem.nodes[node].times_s)
        key = (options, distinct)
        if key not in self._known:
            told = (self.classes[number].of.tolist() for number in sorted(distinct))
            self._add(key, zip([0] * options, *told, strict=True))
        return self._known[key]

    def edge(self, i: int, rows: Numbers, j: int, columns: Numbers) -> Array:
        """Returns the seconds between options of i and options of j."""
        if i < j:
            return self.problem.edges[i, j][np.ix_(rows, columns)]
        return self.problem.edges[j, i][np.ix_(columns, rows)].T

    def states(self, frontier: Frontier) -> int:
        """Returns the number of states of a frontier."""
        return math.prod(self.classes[number].count for number in frontier.values())

    def _add(self, key: object, labels: Iterable[object]) -> None:
        self._known[key] = len(self.classes)
        self.classes.append(_classes(labels))


@dataclass(frozen=True, slots=True)
class Visit:
    """The frontier before and after a node is visited, the node as the one before sees it, and the
    elementary operations that this takes for each bucket of memory (`table`)."""

    before: Frontier
    after: Frontier
    seen: int
    work: int


class Walk:
    """How far the visit of the nodes has come."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.frontier: Frontier = {}
        self.left = set(range(len(sight.near)))
        self._coming = [Counter(near.values()) for near in sight.near]

    def look(self, node: int) -> Visit:
        """Returns what visiting the node would do."""
        sight = self.sight
        after: Frontier = {}
        seen = []
        for i, number in self.frontier.items():
            mine = sight.near[i].get(node)
            if mine is None:
                after[i] = number
                continue
            seen.append(sight.near[node][i])
            rest = [k for k, count in self._coming[i].items() if count > (k == mine)]
            if rest:
                after[i] = sight.common(i, rest)
        groups = sight.states(after)
        own = +self._coming[node]
        if own:
            after[node] = sight.common(node, own)
        by = sight.common(node, seen)
        options = len(sight.problem.nodes[node].times_s)
        work = sight.states(self.frontier) * sight.classes[by].count + groups * options
        return Visit(self.frontier, after, by, work)

    def visit(self, node: int) -> Visit:
        """Visits the node; returns what that did."""
        found = self.look(node)
        self.frontier = found.after
        self.left.remove(node)
        for i in self.sight.near[node]:
            self._coming[i][self.sight.near[i][node]] -= 1
        return found


def best_order(problem: Problem) -> tuple[int, ...]:
    """Returns the order with least work; of equals the first candidate.

    Candidates are the order given and greedy ones: next comes the neighbour of the frontier after
    which fewest states are left. Over a net with nested skips this walks from both ends towards the
    middle."""
    sight = Sight(problem)
    count = len(problem.nodes)
    best = tuple(range(count))
    least = _work(sight, best)
    loose = sorted(range(count), key=lambda i: (len(sight.near[i]), i))[:1]
    for start in dict.fromkeys([*loose, 0, count - 1] if count else []):
        order = _greedy(sight, start)
        work = _work(sight, order)
        if work < least:
            best, least = order, work
    return best


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The visit of one node, as arrays."""

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
        """Returns the elementary operations for each bucket."""
        return self.edge_s.size + self.groups * len(self.seen.of)

    @property
    def cells(self) -> int:
        """Returns how many numbers are stored for each bucket."""
        return self.columns * self.groups


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The visits of all nodes. Visit i is of node `order[i]`, and is `distinct[numbers[i]]`."""

    order: tuple[int, ...]
    distinct: tuple[Step, ...]
    numbers: tuple[int, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(map(self.at, range(len(self.order))))

    def at(self, visit: int) -> Step:
        return self.distinct[self.numbers[visit]]

    def with_edges(self, change: Callable[[Array], Array]) -> Steps:
        """Returns the same visits where every edge costs something else."""
        changed = tuple(replace(step, edge_s=change(step.edge_s)) for step in self.distinct)
        return replace(self, distinct=changed)


def build(problem: Problem, order: Sequence[int]) -> Steps:
    """Returns the steps of visiting the nodes in this order; equal visits share their step."""
    sight = Sight(problem)
    walk = Walk(sight)
    known: dict[object, int] = {}
    distinct: list[Step] = []
    numbers = []
    for node in order:
        visit = walk.visit(node)
        key = (visit.seen, visit.after.get(node), _edges_before(problem, visit, node))
        if key not in known:
            known[key] = len(distinct)
            distinct.append(_step(sight, visit, node))
        numbers.append(known[key])
    return Steps(tuple(order), tuple(distinct), tuple(numbers))


def _edges_before(problem: Problem, visit: Visit, node: int) -> tuple[object, ...]:
    return tuple(
        (
            number,
            visit.after.get(i),
            i < node,
            problem.edge_numbers.get((min(i, node), max(i, node))),
        )
        for i, number in visit.before.items()
    )


def _step(sight: Sight, visit: Visit, node: int) -> Step:
    before = {i: sight.classes[number] for i, number in visit.before.items()}
    after = {i: sight.classes[number] for i, number in visit.after.items()}
    seen = sight.classes[visit.seen]
    shape = tuple(classes.count for classes in before.values())
    edge_s = np.zeros((seen.count, *shape))
    group = np.zeros(shape, dtype=np.int64)
    for axis, (i, classes) in enumerate(before.items()):
        broad = [1] * len(shape)
        broad[axis] = classes.count
        if node in sight.near[i]:
            edge = sight.edge(i, classes.first, node, seen.first)
            edge_s += edge.T.reshape(-1, *broad)
        if i in after:
            group *= after[i].count
            group += after[i].of[classes.first].reshape(broad)
    flat = group.reshape(-1)
    members = np.argsort(flat, kind="stable")
    groups = math.prod(c.count for i, c in after.items() if i != node)
    left = after[node] if node in after else sight.classes[sight.common(node, ())]
    return Step(
        edge_s=np.ascontiguousarray(edge_s.reshape(seen.count, -1)[:, members]),
        members=members,
        starts=np.searchsorted(flat[members], np.arange(groups)),
        largest=int(np.bincount(flat).max()),
        in_order=bool((np.diff(flat) >= 0).all()),
        seen=seen,
        left=left,
        by_seen=_by_class(seen),
        by_left=_by_class(left),
    )


def _by_class(classes: Classes) -> tuple[Numbers, Numbers]:
    order = np.argsort(classes.of, kind="stable")
    return order, np.searchsorted(classes.of[order], np.arange(classes.count))


def _classes(labels: Iterable[object]) -> Classes:
    number: dict[object, int] = {}
    first: list[int] = []
    of = []
    for option, label in enumerate(labels):
        if label not in number:
            number[label] = len(first)
            first.append(option)
        of.append(number[label])
    return Classes(np.array(of, dtype=np.int64), np.array(first, dtype=np.int64))


def _work(sight: Sight, order: Iterable[int]) -> int:
    walk = Walk(sight)
    return sum(walk.visit(node).work for node in order)


def _greedy(sight: Sight, start: int) -> tuple[int, ...]:
    walk = Walk(sight)
    order = [start]
    walk.visit(start)
    while walk.left:
        near = {j for i in walk.frontier for j in sight.near[i]} & walk.left
        looked_at = sorted(near)[:LOOKED_AT] or [min(walk.left)]
        _, _, node = min((*_cost(walk, j), j) for j in looked_at)
        order.append(node)
        walk.visit(node)
    return tuple(order)


def _cost(walk: Walk, node: int) -> tuple[int, int]:
    visit = walk.look(node)
    return walk.sight.states(visit.after), visit.work
