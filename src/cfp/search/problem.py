"""One option for each occurrence of a segment, and what a choice costs.

    T(choice) = Σ_i times_i[c_i] + Σ_(i,j) edges_ij[c_i, c_j]
    M(choice) = Σ_i kept_i[c_i] + max_i scratch_i[c_i]

Edges may join any two nodes. An infinite time says that something cannot be. A `Point` is a choice
with these two figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One occurrence of a segment: what each of its options adds."""

    times_s: Array
    kept_bytes: Numbers  # adds up over nodes
    scratch_bytes: Numbers  # the largest of all nodes counts


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The choice of an option for every node, with what each costs. `edges[i, j]` with i < j holds
    seconds by option of i and option of j.

    Nodes of the same number have the same figures, and so have edges: what is found out about a
    number is found out once. Whoever knows the numbers gives them; otherwise they are found by
    comparing the figures.
    """

    nodes: tuple[Node, ...]
    edges: Mapping[Pair, Array]
    node_numbers: tuple[int, ...] = ()
    edge_numbers: Mapping[Pair, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.node_numbers) != len(self.nodes):
            known: dict[object, int] = {}
            numbers = [known.setdefault(_content(n), len(known)) for n in self.nodes]
            object.__setattr__(self, "node_numbers", tuple(numbers))
        if len(self.edge_numbers) != len(self.edges):
            seen: dict[object, int] = {}
            found = {e: seen.setdefault(_figures(t), len(seen)) for e, t in self.edges.items()}
            object.__setattr__(self, "edge_numbers", found)

    @property
    def distinct_nodes(self) -> dict[int, Node]:
        """Returns one node for each number."""
        return dict(zip(self.node_numbers, self.nodes, strict=True))

    @property
    def distinct_edges(self) -> dict[int, Array]:
        """Returns one edge for each number."""
        return {self.edge_numbers[ends]: edge for ends, edge in self.edges.items()}

    def time_s(self, choice: Sequence[int]) -> float:
        """Returns T."""
        return self.figures(np.array([choice], dtype=np.int64))[0][0]

    def memory_bytes(self, choice: Sequence[int]) -> int:
        """Returns M."""
        return self.figures(np.array([choice], dtype=np.int64))[1][0]

    def figures(self, choices: Numbers) -> tuple[list[float], list[int]]:
        """Returns T and M of each row; sums are rounded once, so their order is no matter."""
        columns = [node.times_s[choices[:, i]] for i, node in enumerate(self.nodes)]
        columns += [edge[choices[:, i], choices[:, j]] for (i, j), edge in self.edges.items()]
        table = np.array(columns, dtype=np.float64).reshape(len(columns), len(choices))
        return [math.fsum(row) for row in table.T.tolist()], self.memories(choices).tolist()

    def memories(self, choices: Numbers) -> Numbers:
        """Returns M of each row."""
        kept = np.zeros(len(choices), dtype=np.int64)
        scratch = np.zeros(len(choices), dtype=np.int64)
        for node, options in zip(self.nodes, choices.T, strict=True):
            kept += node.kept_bytes[options]
            np.maximum(scratch, node.scratch_bytes[options], out=scratch)
        return kept + scratch

    def check(self) -> None:
        """Raises `ValueError` where something does not fit together."""
        if not self.nodes:
            raise ValueError("`nodes` must be one or more.")
        for i, node in enumerate(self.nodes):
            where, shape = f"`nodes[{i}]`", node.times_s.shape
            if len(shape) != 1 or not shape[0]:
                raise ValueError(f"{where} needs one time for each of one or more options.")
            _check_times(node.times_s, f"{where}.times_s")
            for name, sizes in (("kept", node.kept_bytes), ("scratch", node.scratch_bytes)):
                if sizes.shape != shape or not np.issubdtype(sizes.dtype, np.integer):
                    raise ValueError(f"{where}.{name}_bytes must be {shape[0]} integers.")
                if sizes.min() < 0:
                    raise ValueError(f"{where}.{name}_bytes must not be negative.")
        for (i, j), edge in self.edges.items():
            if not 0 <= i < j < len(self.nodes):
                raise ValueError(f"`edges[{i}, {j}]` must join two nodes, the earlier one first.")
            wanted = (len(self.nodes[i].times_s), len(self.nodes[j].times_s))
            if edge.shape != wanted:
                raise ValueError(f"`edges[{i}, {j}]` must be {wanted}, not {edge.shape}.")
            _check_times(edge, f"`edges[{i}, {j}]`")


@dataclass(frozen=True, slots=True)
class Point:
    """A plan: the option of each node, and what it costs."""

    time_s: float
    memory_bytes: int
    choice: tuple[int, ...]


def points(problem: Problem, choices: Numbers) -> list[Point]:
    """Returns the plans of those choices that are possible."""
    times_s, memory_bytes = problem.figures(choices)
    rows = map(tuple, choices.tolist())
    found = map(Point, times_s, memory_bytes, rows)
    return [point for point in found if math.isfinite(point.time_s)]


def frontier_of(plans: Iterable[Point]) -> tuple[Point, ...]:
    """Returns the plans that no other beats in time and in memory; of equals the first by
    choice."""
    found: list[Point] = []
    for plan in sorted(plans, key=lambda p: (p.memory_bytes, p.time_s, p.choice)):
        if not found or plan.time_s < found[-1].time_s:
            found.append(plan)
    return tuple(found)


def best_of(plans: Iterable[Point], limit_bytes: int) -> Point | None:
    """Returns the fastest within the limit; of equals that of least memory, then the first by
    choice."""
    fitting = (plan for plan in plans if plan.memory_bytes <= limit_bytes)
    return min(fitting, key=lambda p: (p.time_s, p.memory_bytes, p.choice), default=None)


def _content(node: Node) -> tuple[object, ...]:
    return tuple(_figures(some) for some in (node.times_s, node.kept_bytes, node.scratch_bytes))


def _figures(some: NDArray[np.generic]) -> tuple[object, ...]:
    return some.shape, some.dtype.str, some.tobytes()


def _check_times(seconds: Array, where: str) -> None:
    if seconds.dtype != np.float64:
        raise ValueError(f"{where} must be float64, not {seconds.dtype}.")
    if not (seconds >= 0).all():
        raise ValueError(f"{where} must be seconds of zero or more, or infinite.")
