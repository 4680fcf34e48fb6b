"""From a traced step and its blocks to the problem of splitting its forward pass.

The ways of a contraction are its candidate dims as the blocks' own seeds would have them
(`seed_dims`: rows at batch granularity, one of several columns), plus what any candidate of its
block makes of it; with `wide`, every way that its map knows. It is whole only if it has none.

A candidate of a block binds a member in the ways that `Candidate.seeds` and `Block.splits` say.
Where these say nothing (after a contracted split the block's tensors carry no dim) a contraction
keeps its ways, for it must be split, and any other member

    is computed whole                 (`Silent.WHOLE`: the splits read literally)
    goes with one dim of the block    (`Silent.DELIVER`: a partial sum is completed into the dims
                                       of another candidate, which the block keeps just as well)
    picks its own                     (`Silent.FREE`)

Equations that need nothing but arguments and constants are left out: whole, they cost nothing,
and a whole value serves every reader for nothing. This loses no optimum.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.theorem.problem import Bound, Node, Problem
from bench.theorem.ways import Way, fits_seed, of_seed, split_ways, splittable, whole
from cfp.blocks import Block, Blocks
from cfp.blocks.build import is_contraction
from cfp.blocks.contraction import seed_dims
from cfp.trace import Equation, Graph, Role


class Silent(enum.Enum):
    """What a block's member does where the chosen candidate names no dim of it."""

    WHOLE = "whole"
    DELIVER = "deliver"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the comparison: what is priced, and what either space may do."""

    weights: bool = False
    wide: bool = False
    silent: Silent = Silent.WHOLE
    pins: Mapping[int, int] = field(default_factory=dict)  # block -> candidate its seeds must take


class BadSplitError(AssertionError):
    """A block says of an equation what its map does not allow."""


def build_problem(graph: Graph, blocks: Blocks, parts: int, rules: Rules) -> Problem:
    """Returns the forward pass with its prices; `solve` decides whether the blocks bind."""
    builder = _Builder(graph, blocks, parts, rules)
    equations = builder.equations()
    nodes = [*builder.weights(equations), *(builder.node(e) for e in equations)]
    at = {int(node.name.split()[0][1:]): i for i, node in enumerate(nodes) if node.name[0] == "e"}
    bound = [builder.bind(block, at, nodes) for block in blocks.blocks]
    pinned = builder.pins(at, nodes)
    moved = {
        value: graph.values[value].size_bytes * (1 if node.inputs else 2)
        for node in nodes
        for value in node.outputs
    }
    return Problem(tuple(nodes), tuple(bound), moved, parts, pinned)


class _Builder:
    def __init__(self, graph: Graph, blocks: Blocks, parts: int, rules: Rules) -> None:
        self.graph, self.blocks, self.parts, self.rules = graph, blocks, parts, rules
        self.block_of = {m: block for block in blocks.blocks for m in block.members}
        self.from_parameter = self._from_parameter()

    def equations(self) -> list[Equation]:
        """Returns the forward equations that may cost anything."""
        costly: set[int] = set(self.blocks.parameters) if self.rules.weights else set()
        kept: list[Equation] = []
        for equation in self.graph.role(Role.FORWARD):
            if equation.index in self.block_of or not costly.isdisjoint(equation.inputs):
                kept.append(equation)
                costly.update(equation.outputs)
        return kept

    def weights(self, equations: list[Equation]) -> list[Node]:
        if not self.rules.weights:
            return []
        read = dict.fromkeys(v for e in equations for v in e.inputs if v in self.blocks.parameters)
        return [self._weight(value) for value in read]

    def _weight(self, value: int) -> Node:
        known = self.graph.values[value]
        held = [Way((), (None,), price=2 * known.size_bytes * self.parts)]
        held += [Way((), (d,)) for d in splittable(known.shape, self.parts)]
        return Node(f"w{value} {self.graph.describe(value)}", (), (value,), tuple(held))

    def node(self, equation: Equation) -> Node:
        ways = tuple(self._ways(equation))
        name = f"e{equation.index} {equation.primitive}"
        return Node(name, equation.inputs, equation.outputs, ways)

    def _ways(self, equation: Equation) -> list[Way]:
        op = equation.op
        ways = split_ways(op, self.parts)
        block = self.block_of.get(equation.index)
        if block is None or not is_contraction(equation, block.seeds):
            return [whole(op), *ways]
        if not self.rules.wide:
            dims = seed_dims(
                op,
                sequence=False,
                parameter=tuple(value in self.from_parameter for value in equation.inputs),
                divides=lambda size: size % self.parts == 0,
            )
            own = of_seed(ways, dims)
            ways = [w for w in ways if w in own or self._used(equation, block, w)]
        return ways or [whole(op)]

    def _used(self, equation: Equation, block: Block, way: Way) -> bool:
        candidates = [i for i, c in enumerate(block.candidates) if c.allows(self.parts)]
        return any(self._says(equation, block, i, way) for i in candidates)

    def _says(self, equation: Equation, block: Block, candidate: int, way: Way) -> bool:
        """Returns whether the way is what the candidate names for the equation."""
        split = block.candidates[candidate].seeds.get(equation.index)
        if split is not None:
            return fits_seed(way, split.operand_dims, split.result_dim)
        if way.partial or way.results != self._named(equation, block, candidate):
            return False
        inside = (
            (block.splits[v][candidate], at)
            for v, at in zip(equation.inputs, way.operands, strict=True)
            if v in block.splits
        )
        return all(said == at for said, at in inside)

    def _named(self, equation: Equation, block: Block, candidate: int) -> tuple[int | None, ...]:
        return tuple(block.splits[value][candidate] for value in equation.outputs)

    def bind(self, block: Block, at: Mapping[int, int], nodes: list[Node]) -> Bound:
        fitting = [i for i, c in enumerate(block.candidates) if c.allows(self.parts)]
        options: list[tuple[int | None, int | None]] = [(i, None) for i in fitting]
        if self.rules.silent is Silent.DELIVER:
            options += [
                (i, j)
                for i in fitting
                for j in fitting
                if self._silent_everywhere(block, i) and not self._silent_everywhere(block, j)
            ]
        allowed = [
            {
                at[m]: self._allowed(self.graph.equations[m], block, option, nodes[at[m]].ways)
                for m in block.members
            }
            for option in options or [(None, None)]
        ]
        return Bound(f"block {block.index}", tuple(allowed))

    def pins(self, at: Mapping[int, int], nodes: list[Node]) -> dict[int, frozenset[int]]:
        """Returns for every seed of a pinned block the ways its candidate says."""
        found: dict[int, frozenset[int]] = {}
        for index, candidate in self.rules.pins.items():
            block = self.blocks.blocks[index]
            for seed in block.candidates[candidate].seeds:
                ways = nodes[at[seed]].ways
                equation = self.graph.equations[seed]
                found[at[seed]] = frozenset(
                    k for k, w in enumerate(ways) if self._says(equation, block, candidate, w)
                )
        return found

    def _silent_everywhere(self, block: Block, candidate: int) -> bool:
        return all(dims[candidate] is None for dims in block.splits.values())

    def _allowed(
        self,
        equation: Equation,
        block: Block,
        option: tuple[int | None, int | None],
        ways: tuple[Way, ...],
    ) -> frozenset[int]:
        candidate, delivered = option
        every = frozenset(range(len(ways)))
        if candidate is not None and self._speaks(equation, block, candidate):
            said = [k for k in every if self._says(equation, block, candidate, ways[k])]
            if delivered is not None:  # a seed whose partial sum goes to the other's dims
                dims = self._named(equation, block, delivered)
                said = [k for k in said if ways[k].results == dims]
            if not said:
                name = block.candidates[candidate].name
                raise BadSplitError(
                    f"block {block.index}: {equation.primitive} has no way for {name}"
                )
            return frozenset(said)
        if is_contraction(equation, block.seeds) or self.rules.silent is Silent.FREE:
            return every
        if delivered is not None and self._speaks(equation, block, delivered):
            return self._allowed(equation, block, (delivered, None), ways)
        return frozenset(k for k in every if ways[k] == whole(equation.op))

    def _speaks(self, equation: Equation, block: Block, candidate: int) -> bool:
        named = self._named(equation, block, candidate)
        if equation.index in block.candidates[candidate].seeds:
            return True
        return any(dim is not None for dim in named)

    def _from_parameter(self) -> frozenset[int]:
        """Returns the values made of parameters and constants alone."""
        found = {*self.blocks.parameters}
        for equation in self.graph.role(Role.FORWARD):
            if equation.index in self.block_of:
                continue
            if all(v in found or v in self.graph.constants for v in equation.inputs):
                found.update(equation.outputs)
        return frozenset(found)
