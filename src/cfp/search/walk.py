"""Visiting the nodes one by one, and what must be remembered on the way.

Of the nodes visited, those with neighbours still to come are the frontier. Of each only this is
remembered: its option as far as the neighbours to come can tell, which is its class. Options whose
edge rows to all of them are equal are one class; resharding depends on how a tensor lies and on
nothing else, so classes are few. A state is a class for each node of the frontier.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cfp.search.problem import Array, Numbers, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Options told apart no further than needed."""

    of: Numbers  # option -> class
    first: Numbers  # class -> its first option

    @property
    def count(self) -> int:
        return len(self.first)


class Sight:
    """What the neighbours of a node see of its options; everything is found out once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.near: list[dict[int, Classes]] = [{} for _ in problem.nodes]
        self._alike: dict[object, Classes] = {}
        known: dict[tuple[int, bool], Classes] = {}
        for (i, j), edge in problem.edges.items():
            for a, b, rows in ((i, j, edge), (j, i, edge.T)):
                key = (id(edge), a > b)
                if key not in known:
                    known[key] = _classes(row.tobytes() for row in np.ascontiguousarray(rows))
                self.near[a][b] = known[key]

    def classes(self, node: int, seen: Iterable[Classes]) -> Classes:
        """By all of `seen` together."""
        distinct = {id(classes): classes for classes in seen}
        options = len(self.problem.nodes[node].times_s)
        key = (options, frozenset(distinct))
        if key not in self._alike:
            columns = [[0] * options, *(classes.of.tolist() for classes in distinct.values())]
            self._alike[key] = _classes(zip(*columns, strict=True))
        return self._alike[key]

    def edge(self, i: int, rows: Numbers, j: int, columns: Numbers) -> Array:
        """Seconds between options of i and options of j."""
        if i < j:
            return self.problem.edges[i, j][np.ix_(rows, columns)]
        return self.problem.edges[j, i][np.ix_(columns, rows)].T


@dataclass(frozen=True, slots=True)
class Visit:
    """The frontier before and after a node is visited, and the node as the one before sees it."""

    before: dict[int, Classes]
    after: dict[int, Classes]
    seen: Classes

    def work(self, node: int) -> int:
        """Elementary operations for each bucket of memory, see `table`."""
        groups = math.prod(c.count for i, c in self.after.items() if i != node)
        return states(self.before) * self.seen.count + groups * len(self.seen.of)


class Walk:
    """Where the visit of the nodes stands."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.frontier: dict[int, Classes] = {}
        self.left = set(range(len(sight.near)))
        self._by_id = {id(c): c for near in sight.near for c in near.values()}
        self._coming = [Counter(map(id, near.values())) for near in sight.near]

    def look(self, node: int) -> Visit:
        """What visiting the node would do."""
        after = {}
        seen = []
        for i, classes in self.frontier.items():
            mine = self.sight.near[i].get(node)
            if mine is None:
                after[i] = classes
                continue
            seen.append(self.sight.near[node][i])
            coming = self._coming[i]
            rest = [k for k, count in coming.items() if count > (k == id(mine))]
            if rest:
                after[i] = self.sight.classes(i, map(self._by_id.__getitem__, rest))
        if +self._coming[node]:
            own = +self._coming[node]
            after[node] = self.sight.classes(node, map(self._by_id.__getitem__, own))
        return Visit(self.frontier, after, self.sight.classes(node, seen))

    def visit(self, node: int) -> Visit:
        found = self.look(node)
        self.frontier = found.after
        self.left.remove(node)
        for i in self.sight.near[node]:
            self._coming[i][id(self.sight.near[i][node])] -= 1
        return found


def states(frontier: dict[int, Classes]) -> int:
    return math.prod(classes.count for classes in frontier.values())


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
