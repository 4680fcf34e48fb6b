"""A graph to be split: nodes with ways, values with readers, blocks that bind nodes together.

An assignment picks a way per node. Its price is the sum of the ways' own prices (completed
partial sums, gradients of weights held whole) and of what every value's readers make it move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.theorem.ways import Sharding, Way


@dataclass(frozen=True, slots=True)
class Node:
    """An equation, or a parameter that is held somehow. `inputs`, `outputs` are values."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """A block: `allowed[i][node]` are the ways (by position) its candidate i leaves the node."""

    name: str
    allowed: tuple[dict[int, frozenset[int]], ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """`moved` is the price, in units of (P-1)/P^2 bytes, of an all-to-all of each value.

    `pinned` nodes must take one of the ways named, in either space.
    """

    nodes: tuple[Node, ...]
    bound: tuple[Bound, ...]
    moved: dict[int, int]
    parts: int
    pinned: dict[int, frozenset[int]] = field(default_factory=dict)

    def producers(self) -> dict[int, tuple[int, int]]:
        """Returns a dict: value -> (node, which of its results)."""
        return {v: (i, r) for i, node in enumerate(self.nodes) for r, v in enumerate(node.outputs)}

    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """Returns a dict: value -> (node, which of its operands), for every place that reads it."""
        found: dict[int, list[tuple[int, int]]] = {}
        for i, node in enumerate(self.nodes):
            for operand, value in enumerate(node.inputs):
                found.setdefault(value, []).append((i, operand))
        return found


def price(problem: Problem, assignment: Sequence[int]) -> int:
    """Returns the units moved when node i is computed in its way `assignment[i]`."""
    made: dict[int, Sharding] = {}
    wanted: dict[int, set[Sharding]] = {}
    total = 0
    for node, choice in zip(problem.nodes, assignment, strict=True):
        way = node.ways[choice]
        total += way.price
        made.update(zip(node.outputs, way.results, strict=True))
        for value, sharding in zip(node.inputs, way.operands, strict=True):
            wanted.setdefault(value, set()).add(sharding)
    for value, sharding in made.items():
        total += (
            _transfers(sharding, wanted.get(value, set()), problem.parts) * problem.moved[value]
        )
    return total


def _transfers(made: Sharding, wanted: set[Sharding], parts: int) -> int:
    """Returns the all-to-alls that a value's readers need; a gather counts for P and makes slices
    free."""
    others = wanted - {made}
    if made is None or not others:
        return 0
    return parts if None in others else min(len(others), parts)


def respects_pins(problem: Problem, assignment: Sequence[int]) -> bool:
    return all(assignment[node] in ways for node, ways in problem.pinned.items())


def respects_blocks(problem: Problem, assignment: Sequence[int]) -> bool:
    """Returns whether some candidate of each block allows what the assignment does inside it."""
    return all(
        any(
            all(assignment[node] in ways for node, ways in allowed.items())
            for allowed in block.allowed
        )
        for block in problem.bound
    )
