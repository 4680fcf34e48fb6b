"""What is known while blocks grow: which block owns a value, and where it carries candidate dims.

Blocks and candidates that turn out to be one are united; `find` and `candidate` give the one
that stands for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from cfp.affine import follow
from cfp.blocks.block import Candidate
from cfp.trace import Equation, Graph, Op

# where a tensor carries candidates: candidate id -> (dim, extent)
Positions = dict[int, tuple[int, int]]


@dataclass(slots=True)
class Growing:
    """A block under construction; `candidates` are ids into `Ownership.candidates`."""

    index: int
    loop: int | None
    seeds: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    ended_by: dict[str, None] = field(default_factory=dict)


class Ownership:
    """Which block owns each value so far; `blocks` are those left after siblings joined."""

    def __init__(
        self,
        graph: Graph,
        parameters: frozenset[int],
        mesh_shape: tuple[int, ...],
        *,
        cuts: frozenset[int],
    ) -> None:
        self.graph = graph
        self.parameters = parameters
        self.mesh_shape = mesh_shape
        self.cuts = cuts
        self.all_blocks: list[Growing] = []
        self.owner: dict[int, int] = {}  # value -> block, where it carries the block's dims
        self.positions: dict[int, Positions] = {}
        self.sources: dict[int, frozenset[int]] = {}
        self.candidates: list[Candidate] = []
        self._parent: list[int] = []
        self._candidate_parent: list[int] = []
        self.sizes = tuple(size for size in mesh_shape if size > 1)
        self._moves: dict[tuple[Op, int, int, int, int], tuple[int, int] | None] = {}

    @property
    def blocks(self) -> list[Growing]:
        return [block for block in self.all_blocks if self.find(block.index) == block.index]

    def find(self, block: int) -> int:
        while self._parent[block] != block:
            self._parent[block] = self._parent[self._parent[block]]
            block = self._parent[block]
        return block

    def candidate(self, identity: int) -> int:
        while self._candidate_parent[identity] != identity:
            identity = self._candidate_parent[identity]
        return identity

    def sources_of(self, values: Iterable[int]) -> frozenset[int]:
        found: set[int] = set()
        for value in values:
            if value in self.sources:
                found.update(self.sources[value])
        return frozenset(map(self.find, found))

    def roots(self, value: int) -> set[int]:
        """Returns the blocks a value comes from."""
        return set(map(self.find, self.sources.get(value, ())))

    def fitting(self, identity: int) -> list[int]:
        """Returns the mesh axis sizes that can split a candidate."""
        return [size for size in self.sizes if self.candidates[identity].extent % size == 0]

    def unite_candidates(self, identity: int, into: int) -> None:
        self._candidate_parent[identity] = into

    def unite_blocks(self, block: int, into: int) -> None:
        self._parent[block] = into

    def new_block(self, loop: int | None, seed: int) -> Growing:
        block = Growing(len(self.all_blocks), loop, [seed], [seed])
        self.all_blocks.append(block)
        self._parent.append(block.index)
        return block

    def new_candidate(self, candidate: Candidate) -> int:
        identity = len(self.candidates)
        self.candidates.append(candidate)
        self._candidate_parent.append(identity)
        return identity

    def carries(self, value: int, block: Growing) -> bool:
        owner = self.owner.get(value)
        return owner is not None and self.find(owner) == block.index and value not in self.cuts

    def move(self, equation: Equation, operands: list[int]) -> list[Positions] | str:
        """Returns the candidates of some operands carried to the results, or the reason they are
        not."""
        mapping = equation.op.map
        assert mapping is not None
        moved: list[Positions] = [{} for _ in equation.outputs]
        for i in operands:
            for identity, (dim, extent) in self.positions[equation.inputs[i]].items():
                identity = self.candidate(identity)
                name = self.candidates[identity].name
                reached = False
                for r, positions in enumerate(moved):
                    if mapping.feeds is not None and i not in mapping.feeds[r]:
                        continue
                    there = self._step(equation.op, i, r, dim, extent)
                    if there is None or not self.still_divides(identity, there[1]):
                        return f"{equation.primitive} does not keep {name}"
                    reached = True
                    if positions.setdefault(identity, there)[0] != there[0]:
                        return f"{equation.primitive} moves {name} two ways"
                    extent_here = math.gcd(positions[identity][1], there[1])
                    positions[identity] = (there[0], extent_here)
                if not reached:
                    return f"{equation.primitive} does not keep {name}"
        for positions in moved:
            if len({dim for dim, _ in positions.values()}) < len(positions):
                return f"{equation.primitive} puts two candidates in one dim"
        return moved

    def _step(
        self, op: Op, operand: int, result: int, dim: int, extent: int
    ) -> tuple[int, int] | None:
        key = (op, operand, result, dim, extent)
        if key not in self._moves:
            mapping = op.map
            assert mapping is not None
            self._moves[key] = follow(
                mapping.sizes, mapping.operands[operand], mapping.results[result], dim, extent
            )
        return self._moves[key]

    def still_divides(self, identity: int, extent: int) -> bool:
        """Returns whether every mesh axis that could split the candidate at its seed still can, and
        some axis can."""
        known = self.candidates[identity].extent
        return math.gcd(known, extent) > 1 and all(
            extent % size == 0 for size in self.sizes if known % size == 0
        )
