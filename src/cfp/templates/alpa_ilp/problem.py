"""Nodes with ways, and what an assignment of ways costs.

    cost(x) = sum over nodes      own[node][x]                     penalties, repeated work
            + sum over sums       all-reduces of partial results   times how often they happen
            + sum over reads      resharding(made, wanted)         times how often it happens
            - sum over shared     one all-reduce of two that are added

A `Read` is one operand of one equation: the value as its node makes it, the layout that the
reader's node wants. An alias is a read that must not move anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cfp.layouts import Layout
from cfp.templates.alpa_ilp.cost import ALL_REDUCE, FORBIDDEN, Cluster, Move, gathering, resharding

Costs = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Read:
    """Value `value` of node `maker` is read by node `reader`; both have a layout per way."""

    value: int
    size_bytes: int
    maker: int
    made: tuple[Layout, ...]
    reader: int
    wanted: tuple[Layout, ...]
    times: int
    equation: int | None
    operand: int
    alias: bool = False

    def cost(self, cluster: Cluster, made: Layout, wanted: Layout) -> float:
        if self.alias and made != wanted:
            return FORBIDDEN
        return resharding(cluster, self.size_bytes, made, wanted)[0] * self.times

    def paid(
        self, cluster: Cluster, made: Layout, wanted: Layout
    ) -> tuple[float, tuple[Move, ...]]:
        """Returns what one reading costs and moves, also where it is forbidden."""
        cost, moves = resharding(cluster, self.size_bytes, made, wanted)
        return (cost, moves) if cost < FORBIDDEN else gathering(cluster, self.size_bytes, made)


@dataclass(frozen=True, slots=True)
class Sum:
    """Results of `equation` that are partial along some axes, per way of the node."""

    value: int
    size_bytes: int
    node: int
    axes: tuple[tuple[int, ...], ...]
    made: tuple[Layout, ...]
    times: int
    equation: int

    def local_bytes(self, cluster: Cluster, way: int) -> float:
        return self.size_bytes / cluster.tiles(self.made[way])

    def cost(self, cluster: Cluster, way: int) -> float:
        size_bytes = self.local_bytes(cluster, way)
        return self.times * sum(
            cluster.price(ALL_REDUCE, size_bytes, axis) for axis in self.axes[way]
        )


@dataclass(slots=True)
class AlpaProblem:
    """Alpa's integer program before it is written down. `own` is the price of every way of every
    node; `shared` pairs sums that one all-reduce can complete together."""

    cluster: Cluster
    own: list[list[float]] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    shared: list[tuple[Sum, Sum]] = field(default_factory=list)

    def node(self, own: Sequence[float]) -> int:
        self.own.append(list(own))
        return len(self.own) - 1


def together(first: Sum, second: Sum, ways: tuple[int, int]) -> bool:
    """Returns whether two partial results are alike, so that their sum is all-reduced once."""
    a, b = ways
    return bool(first.axes[a]) and (first.axes[a], first.made[a]) == (
        second.axes[b],
        second.made[b],
    )


def price(problem: AlpaProblem, ways: Sequence[int], *, relent: bool = False) -> float:
    """Returns the cost of one assignment, term by term; `relent` pays for what is forbidden."""
    cluster = problem.cluster
    total = sum(own[way] for own, way in zip(problem.own, ways, strict=True))
    total += sum(term.cost(cluster, ways[term.node]) for term in problem.sums)
    for read in problem.reads:
        made, wanted = read.made[ways[read.maker]], read.wanted[ways[read.reader]]
        paid = read.paid(cluster, made, wanted)[0] * read.times if relent else None
        total += read.cost(cluster, made, wanted) if paid is None else paid
    for first, second in problem.shared:
        if together(first, second, (ways[first.node], ways[second.node])):
            total -= second.cost(cluster, ways[second.node])
    return total


def tables(problem: AlpaProblem) -> tuple[list[Costs], dict[tuple[int, int], Costs]]:
    """Returns the same as a cost per way of every node, and per pair of ways of every edge (i <
    j)."""
    nodes = [np.array(own, dtype=float) for own in problem.own]
    edges: dict[tuple[int, int], Costs] = {}
    known: dict[tuple[object, ...], Costs] = {}
    for term in problem.sums:
        nodes[term.node] += [term.cost(problem.cluster, w) for w in range(len(term.axes))]
    for read in problem.reads:
        key = (read.made, read.wanted, read.size_bytes, read.times, read.alias)
        if key not in known:
            known[key] = np.array(
                [[read.cost(problem.cluster, m, w) for w in read.wanted] for m in read.made]
            )
        _add(nodes, edges, read.maker, read.reader, known[key])
    for first, second in problem.shared:
        saved = np.array(
            [
                [
                    -second.cost(problem.cluster, b) if together(first, second, (a, b)) else 0.0
                    for b in range(len(second.axes))
                ]
                for a in range(len(first.axes))
            ]
        )
        _add(nodes, edges, first.node, second.node, saved)
    return nodes, edges


def _add(
    nodes: list[Costs], edges: dict[tuple[int, int], Costs], i: int, j: int, costs: Costs
) -> None:
    if i == j:
        nodes[i] += np.diagonal(costs)
        return
    if i > j:
        i, j, costs = j, i, costs.T
    edges[i, j] = edges[i, j] + costs if (i, j) in edges else costs.copy()
