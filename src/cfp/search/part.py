"""What is left of a problem: some of the options of each node.

Nodes and edges that share their arrays still do afterwards, so that what follows can go by
identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cfp.search.problem import Array, Node, Numbers, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Node i of what is left is node `places[i]` of the whole, and its options are numbered
    `options[i]` there. Nodes of the whole that are decided have the option `chosen`."""

    whole: Problem
    problem: Problem
    options: tuple[Numbers, ...]
    places: tuple[int, ...]
    chosen: Numbers

    @property
    def size(self) -> int:
        return sum(map(len, self.options))

    @property
    def empty(self) -> bool:
        """Some node has no option left."""
        return any(len(options) == 0 for options in self.options)

    def numbered(self, choices: Numbers) -> Numbers:
        """Choices of this part as choices of the whole."""
        found = np.tile(self.chosen, (len(choices), 1))
        for place, options, column in zip(self.places, self.options, choices.T, strict=True):
            found[:, place] = options[column]
        return found

    def take(self, keep: Sequence[Numbers]) -> Part:
        """Only the options at these positions, in ascending order."""
        same: dict[bytes, Numbers] = {}
        keep = [same.setdefault(positions.tobytes(), positions) for positions in keep]
        nodes: dict[tuple[int, int], Node] = {}
        edges: dict[tuple[int, int, int], Array] = {}
        options: dict[tuple[int, int], Numbers] = {}
        for node, numbers, positions in zip(self.problem.nodes, self.options, keep, strict=True):
            if (id(node), id(positions)) not in nodes:
                nodes[id(node), id(positions)] = _node(node, positions)
            if (id(numbers), id(positions)) not in options:
                options[id(numbers), id(positions)] = numbers[positions]
        for (i, j), edge in self.problem.edges.items():
            if (id(edge), id(keep[i]), id(keep[j])) not in edges:
                edges[id(edge), id(keep[i]), id(keep[j])] = _edge(edge, keep[i], keep[j])
        problem = Problem(
            tuple(nodes[id(n), id(k)] for n, k in zip(self.problem.nodes, keep, strict=True)),
            {
                (i, j): edges[id(edge), id(keep[i]), id(keep[j])]
                for (i, j), edge in self.problem.edges.items()
            },
        )
        left = tuple(options[id(o), id(k)] for o, k in zip(self.options, keep, strict=True))
        return replace(self, problem=problem, options=left)


def all_of(problem: Problem) -> Part:
    """The whole problem; nodes of the same arrays become the same node."""
    nodes: dict[tuple[int, int, int], Node] = {}
    options: dict[int, Numbers] = {}
    for node in problem.nodes:
        nodes.setdefault(_identity(node), node)
        options.setdefault(len(node.times_s), np.arange(len(node.times_s)))
    same = tuple(nodes[_identity(node)] for node in problem.nodes)
    return Part(
        problem,
        Problem(same, problem.edges),
        tuple(options[len(node.times_s)] for node in same),
        tuple(range(len(same))),
        np.zeros(len(same), dtype=np.int64),
    )


def _identity(node: Node) -> tuple[int, int, int]:
    return id(node.times_s), id(node.kept_bytes), id(node.scratch_bytes)


def _node(node: Node, keep: Numbers) -> Node:
    if len(keep) == len(node.times_s):
        return node
    return Node(node.times_s[keep], node.kept_bytes[keep], node.scratch_bytes[keep])


def _edge(edge: Array, rows: Numbers, columns: Numbers) -> Array:
    if (len(rows), len(columns)) == edge.shape:
        return edge
    return edge[np.ix_(rows, columns)]
