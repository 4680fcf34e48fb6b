"""What is left of a problem: some of the options of each node.

Nodes and edges that have the same number still do afterwards (`problem`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cfp.search.problem import Array, Node, Numbers, Pair, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Subproblem:
    """A problem with some of its options left out. Node i of what is left is node `places[i]` of
    the whole, and its options are numbered `options[i]` there: nodes of the same number have the
    same. Nodes of the whole that are decided have the option `chosen`."""

    whole: Problem
    problem: Problem
    options: tuple[Numbers, ...]
    places: tuple[int, ...]
    chosen: Numbers

    @property
    def size(self) -> int:
        """Returns the number of options of all nodes."""
        return sum(map(len, self.options))

    @property
    def empty(self) -> bool:
        """Returns whether some node has no option left."""
        return any(len(options) == 0 for options in self.options)

    def numbered(self, choices: Numbers) -> Numbers:
        """Returns choices of this subproblem as choices of the whole."""
        found = np.tile(self.chosen, (len(choices), 1))
        for place, options, column in zip(self.places, self.options, choices.T, strict=True):
            found[:, place] = options[column]
        return found

    def take(self, keep: Sequence[Numbers]) -> Subproblem:
        """Returns the subproblem with only the options at these positions, in ascending order."""
        known: dict[bytes, int] = {}
        which = [known.setdefault(positions.tobytes(), len(known)) for positions in keep]
        problem = self.problem
        numbers: dict[Pair, int] = {}
        nodes: dict[int, Node] = {}
        options: dict[int, Numbers] = {}
        node_numbers = []
        for i, number in enumerate(problem.node_numbers):
            new = numbers.setdefault((number, which[i]), len(numbers))
            node_numbers.append(new)
            if new not in nodes:
                nodes[new] = _node(problem.nodes[i], keep[i])
                options[new] = self.options[i][keep[i]]
        tables: dict[tuple[int, int, int], int] = {}
        edges: dict[int, Array] = {}
        edge_numbers = {}
        for (i, j), number in problem.edge_numbers.items():
            new = tables.setdefault((number, which[i], which[j]), len(tables))
            edge_numbers[i, j] = new
            if new not in edges:
                edges[new] = _edge(problem.edges[i, j], keep[i], keep[j])
        taken = Problem(
            tuple(nodes[number] for number in node_numbers),
            {ends: edges[number] for ends, number in edge_numbers.items()},
            tuple(node_numbers),
            edge_numbers,
        )
        return replace(self, problem=taken, options=tuple(options[n] for n in node_numbers))

    def scratch_values(self) -> Numbers:
        """Returns all that the largest scratch of a plan can be, in ascending order: from the
        largest of the nodes' least ones on."""
        sizes = [node.scratch_bytes for node in self.problem.distinct_nodes.values()]
        if not sizes:
            return np.zeros(1, dtype=np.int64)
        values: Numbers = np.unique(np.concatenate(sizes))
        least = max(int(some.min()) for some in sizes)
        return values[np.searchsorted(values, least) :]

    def under(self, cap: int) -> Subproblem:
        """Returns the subproblem with only what needs so much scratch at most."""
        distinct = self.problem.distinct_nodes
        keep = {number: np.flatnonzero(n.scratch_bytes <= cap) for number, n in distinct.items()}
        return self.take([keep[number] for number in self.problem.node_numbers])

    def contract(self, order: Sequence[int]) -> tuple[Subproblem, tuple[int, ...]]:
        """Returns the subproblem without the nodes that have one option left, which are no choice,
        and the order of the others. Edges to decided nodes become times of the other end; what the
        decided nodes cost is added to the first node that is not decided."""
        problem = self.problem
        free = [i for i, node in enumerate(problem.nodes) if len(node.times_s) > 1] or [0]
        if len(free) == len(problem.nodes):
            return self, tuple(order)
        number = {i: at for at, i in enumerate(free)}
        decided = [node for i, node in enumerate(problem.nodes) if i not in number]
        extra = _times_of_decided(problem, number)
        extra[free[0]] += sum(float(node.times_s[0]) for node in decided)
        nodes = [_slower(problem.nodes[i], extra[i]) for i in free]
        first = nodes[0]
        nodes[0] = replace(
            first,
            kept_bytes=first.kept_bytes + sum(int(node.kept_bytes[0]) for node in decided),
            scratch_bytes=np.maximum(
                first.scratch_bytes, max(int(node.scratch_bytes[0]) for node in decided)
            ),
        )
        known: dict[object, int] = {(): 0}  # the first node has a number of its own
        node_numbers = [0]
        for i in free[1:]:
            key = (problem.node_numbers[i], extra[i].tobytes())
            node_numbers.append(known.setdefault(key, len(known)))
        between = [(i, j) for i, j in problem.edges if i in number and j in number]
        left = Problem(
            tuple(nodes),
            {(number[i], number[j]): problem.edges[i, j] for i, j in between},
            tuple(node_numbers),
            {(number[i], number[j]): problem.edge_numbers[i, j] for i, j in between},
        )
        chosen = self.chosen.copy()
        for i, (place, options) in enumerate(zip(self.places, self.options, strict=True)):
            if i not in number:
                chosen[place] = options[0]
        contracted = Subproblem(
            self.whole,
            left,
            tuple(self.options[i] for i in free),
            tuple(self.places[i] for i in free),
            chosen,
        )
        return contracted, tuple(number[i] for i in order if i in number)


def all_of(problem: Problem) -> Subproblem:
    """Returns the whole problem as a subproblem."""
    options = {n: np.arange(len(node.times_s)) for n, node in problem.distinct_nodes.items()}
    return Subproblem(
        problem,
        problem,
        tuple(options[number] for number in problem.node_numbers),
        tuple(range(len(problem.nodes))),
        np.zeros(len(problem.nodes), dtype=np.int64),
    )


def _node(node: Node, keep: Numbers) -> Node:
    if len(keep) == len(node.times_s):
        return node
    return Node(node.times_s[keep], node.kept_bytes[keep], node.scratch_bytes[keep])


def _edge(edge: Array, rows: Numbers, columns: Numbers) -> Array:
    if (len(rows), len(columns)) == edge.shape:
        return edge
    return edge[np.ix_(rows, columns)]


def _times_of_decided(problem: Problem, number: dict[int, int]) -> dict[int, Array]:
    """Returns the seconds that edges to nodes with one option add, by free node and its option.
    Edges between two of these nodes count with the first free node."""
    extra = {i: np.zeros(len(problem.nodes[i].times_s)) for i in number}
    first = next(iter(number))
    for (i, j), edge in problem.edges.items():
        if i in number and j in number:
            continue
        if i in number:
            extra[i] += edge[:, 0]
        elif j in number:
            extra[j] += edge[0]
        else:
            extra[first] += edge[0, 0]
    return extra


def _slower(node: Node, seconds: Array) -> Node:
    return replace(node, times_s=node.times_s + seconds) if seconds.any() else node
