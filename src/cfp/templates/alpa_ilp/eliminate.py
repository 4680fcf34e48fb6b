"""Nodes that can be decided last are taken out exactly, before any solver runs.

A node with at most two neighbours (an optimizer state, a weight read by two dots) has a best way
for every pair of theirs. Taken out, it leaves that best way's cost behind (a min-plus product):

    cost(a, b) += min over w of  edge(a, w) + own(w) + edge(w, b)

What remains is a core in which every node has three neighbours or more. Once the core is decided
the nodes taken out are, in reverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cfp.templates.alpa_ilp.problem import Costs


@dataclass(slots=True)
class Core:
    """What is left, by the nodes' numbers; `taken` remembers the others, in order."""

    nodes: dict[int, Costs]
    edges: dict[tuple[int, int], Costs]
    constant: float = 0.0
    taken: list[tuple[int, tuple[int, ...], Costs]] = field(default_factory=list)

    def complete(self, ways: Mapping[int, int]) -> dict[int, int]:
        """Returns a way for every node, given ways for the core."""
        known = dict(ways)
        for node, neighbours, costs in reversed(self.taken):
            known[node] = int(np.argmin(costs[tuple(known[n] for n in neighbours)]))
        return known


def eliminate(nodes: list[Costs], edges: Mapping[tuple[int, int], Costs]) -> Core:
    """Removes nodes with up to two neighbours until there are none, and returns the rest."""
    core = Core(dict(enumerate(nodes)), dict(edges))
    around: dict[int, set[int]] = {node: set() for node in core.nodes}
    for i, j in edges:
        around[i].add(j)
        around[j].add(i)
    waiting = [node for node, others in around.items() if len(others) <= 2]
    while waiting:
        node = waiting.pop()
        if node not in core.nodes or len(around[node]) > 2:
            continue
        others = tuple(sorted(around.pop(node)))
        costs = core.nodes.pop(node)
        for place, other in enumerate(others):
            table = _between(core.edges, other, node)
            shape = [1] * len(others) + [table.shape[1]]
            shape[place] = table.shape[0]
            costs = costs + table.reshape(shape)
            core.edges.pop((min(node, other), max(node, other)))
            around[other].discard(node)
        core.taken.append((node, others, costs))
        left = costs.min(axis=-1)
        if not others:
            core.constant += float(left)
        elif len(others) == 1:
            core.nodes[others[0]] = core.nodes[others[0]] + left
        else:
            i, j = others
            core.edges[i, j] = core.edges.get((i, j), np.zeros(left.shape)) + left
            around[i].add(j)
            around[j].add(i)
        waiting += [other for other in others if len(around[other]) <= 2]
    return core


def _between(edges: Mapping[tuple[int, int], Costs], i: int, j: int) -> Costs:
    return edges[i, j] if i < j else edges[j, i].T
