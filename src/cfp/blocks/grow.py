"""Phase 1: blocks grow from their seeds while every candidate dim stays preserved.

One sweep over the forward equations in program order decides for each what it belongs to. Blocks
are numbered as their seeds appear, and every rule below keeps edges between blocks pointing from
lower to higher numbers, so the blocks can always run in order. With R the latest block that an
equation's inputs come from:

- it joins R if every input that comes from R carries R's candidate dims and the equation
  preserves them all (Eq. 1, divisibility by the mesh axes included);
- inputs from an earlier block A: if R depends on A, A's tensor simply enters R (a residual);
  otherwise A and R are siblings (q, k and v) and become one, if the equation preserves both;
- a contraction that does not join is the seed of a new block;
- anything else belongs to no block yet; `place` puts it with its reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cfp.affine import follow
from cfp.blocks.block import Candidate, Kind
from cfp.blocks.contraction import seed_dims
from cfp.blocks.operands import OPERANDS
from cfp.trace import LOOP_ENTER, LOOP_EXIT, LOOP_PRIMITIVES, Equation, Graph, Op, Role

LOOP_ENDS = {LOOP_ENTER: "a loop begins", LOOP_EXIT: "the loop's iteration ends"}

# where a tensor carries candidates: candidate id -> (dim, extent)
Positions = dict[int, tuple[int, int]]


@dataclass(slots=True)
class Growing:
    """A block under construction; `candidates` are ids into `Growth.candidates`."""

    index: int
    loop: int | None
    seeds: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    ended_by: dict[str, None] = field(default_factory=dict)


class Growth:
    """The sweep's state; `blocks` are the roots left after siblings joined."""

    def __init__(
        self,
        graph: Graph,
        parameters: frozenset[int],
        mesh_shape: tuple[int, ...],
        *,
        sequence: bool,
        cuts: frozenset[int],
    ) -> None:
        self.graph = graph
        self.parameters = parameters
        self.mesh_shape = mesh_shape
        self.sequence = sequence
        self.cuts = cuts
        self.all_blocks: list[Growing] = []
        self.owner: dict[int, int] = {}  # value -> block, where it carries the block's dims
        self.positions: dict[int, Positions] = {}
        self.sources: dict[int, frozenset[int]] = {}
        self.candidates: list[Candidate] = []
        self._parent: list[int] = []
        self._candidate_parent: list[int] = []
        self._sizes = tuple(size for size in mesh_shape if size > 1)
        self._from_parameter: set[int] = set(parameters)
        self._varying: set[int] = set(graph.inputs)
        self._moves: dict[tuple[int, int, int, int, int], tuple[int, int] | None] = {}

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

    # --- the sweep -----------------------------------------------------------------------

    def run(self) -> None:
        for equation in self.graph.equations:
            if equation.role is Role.FORWARD:
                self._visit(equation)

    def _visit(self, equation: Equation) -> None:
        inputs = equation.inputs
        if not self._varying.isdisjoint(inputs):
            self._varying.update(equation.outputs)
        sources = self.sources_of(inputs)
        if sources and self._join(equation, sources):
            return
        if self._is_seed(equation):
            self._seed(equation, sources)
            return
        if sources:
            for output in equation.outputs:
                self.sources[output] = sources
        elif not self._from_parameter.isdisjoint(inputs) and all(
            v in self._from_parameter or v not in self._varying for v in inputs
        ):
            self._from_parameter.update(equation.outputs)

    def _is_seed(self, equation: Equation) -> bool:
        """A contraction of anything but constants; of lookups, those in a parameter."""
        if equation.primitive not in OPERANDS or equation.opaque:
            return False
        if self._varying.isdisjoint(equation.inputs):
            return False
        return equation.primitive != "gather" or equation.inputs[0] in self._from_parameter

    def _seed(self, equation: Equation, sources: frozenset[int]) -> None:
        block = Growing(len(self.all_blocks), equation.loop, [equation.index], [equation.index])
        self.all_blocks.append(block)
        self._parent.append(block.index)
        self._depend(block, sources)
        for source in sources:
            if not self.all_blocks[source].ended_by:
                self.all_blocks[source].ended_by[f"{equation.primitive} starts a block"] = None
        parameter = tuple(value in self._from_parameter for value in equation.inputs)
        dims = seed_dims(
            equation.op,
            sequence=self.sequence,
            parameter=parameter,
            divides=lambda size: all(size % parts == 0 for parts in self._sizes),
        )
        positions: Positions = {}
        for dim in dims:
            if dim.extent == 1:
                continue
            identity = len(self._candidate_parent)
            self._candidate_parent.append(identity)
            block.candidates.append(identity)
            self.candidates.append(
                Candidate(dim.kind.value, dim.kind, dim.extent, {equation.index: dim.split})
            )
            if dim.split.result_dim is not None:
                positions[identity] = (dim.split.result_dim, dim.extent)
        self._own(equation, block, [positions])

    # --- joining -------------------------------------------------------------------------

    def _join(self, equation: Equation, sources: frozenset[int]) -> bool:
        latest = self.all_blocks[max(sources)]
        if equation.primitive in LOOP_PRIMITIVES or latest.loop != equation.loop:
            if equation.primitive in LOOP_ENDS:
                latest.ended_by[LOOP_ENDS[equation.primitive]] = None
            return False
        mine: list[int] = []
        for i, value in enumerate(equation.inputs):
            if value in self.sources and latest.index in map(self.find, self.sources[value]):
                if not self._carries(value, latest):
                    if value in self.cuts:
                        latest.ended_by["split at a smaller tensor"] = None
                    return False
                mine.append(i)
        if equation.opaque:
            latest.ended_by[f"{equation.primitive} is opaque"] = None
            return False
        moved = self._move(equation, mine)
        if isinstance(moved, str):
            latest.ended_by[moved] = None
            return False
        contracts = equation.primitive in OPERANDS
        for sibling in self._siblings(equation, latest, sources):
            merged = self._merge(equation, sibling, latest, moved)
            if merged is None:
                if contracts:
                    reason = f"{equation.primitive} does not preserve both blocks it reads"
                    latest.ended_by[reason] = None
                    return False
                continue
            moved = merged
        self._depend(latest, sources)
        latest.members.append(equation.index)
        for positions in moved:
            for identity, (_, extent) in positions.items():
                known = self.candidates[identity]
                if known.extent != extent:
                    common = math.gcd(known.extent, extent)
                    self.candidates[identity] = replace(known, extent=common)
        self._own(equation, latest, moved)
        return True

    def _carries(self, value: int, block: Growing) -> bool:
        owner = self.owner.get(value)
        return owner is not None and self.find(owner) == block.index and value not in self.cuts

    def _move(self, equation: Equation, operands: list[int]) -> list[Positions] | str:
        """Candidates of some operands carried to the results, or the reason they are not."""
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
                    if there is None or not self._still_divides(identity, there[1]):
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
        key = (id(op), operand, result, dim, extent)
        if key not in self._moves:
            mapping = op.map
            assert mapping is not None
            self._moves[key] = follow(
                mapping.sizes, mapping.operands[operand], mapping.results[result], dim, extent
            )
        return self._moves[key]

    def _still_divides(self, identity: int, extent: int) -> bool:
        """Every mesh axis that could split the candidate at its seed still can; something can."""
        known = self.candidates[identity].extent
        return math.gcd(known, extent) > 1 and all(
            extent % size == 0 for size in self._sizes if known % size == 0
        )

    def _depend(self, block: Growing, sources: frozenset[int]) -> None:
        for source in sources - {block.index}:
            block.before.add(source)
            self.all_blocks[source].after.add(block.index)

    def _own(self, equation: Equation, block: Growing, positions: list[Positions]) -> None:
        for output, where in zip(equation.outputs, positions, strict=True):
            self.owner[output] = block.index
            self.positions[output] = where
            self.sources[output] = frozenset({block.index})

    # --- siblings ------------------------------------------------------------------------

    def _siblings(
        self, equation: Equation, latest: Growing, sources: frozenset[int]
    ) -> list[Growing]:
        """Earlier blocks that feed the equation their dims and that `latest` does not need."""
        found: list[Growing] = []
        for index in sorted(sources - {latest.index}, reverse=True):
            block = self.all_blocks[index]
            if block.loop != latest.loop:
                continue
            feeding = [value for value in equation.inputs if index in self._roots(value)]
            carries = any(self._carries(value, block) for value in feeding)
            if carries and not self._needs(latest, index):
                found.append(block)
        return found

    def _roots(self, value: int) -> set[int]:
        return set(map(self.find, self.sources.get(value, ())))

    def _needs(self, block: Growing, earlier: int) -> bool:
        """Whether `block` depends on block `earlier`, directly or through others."""
        seen: set[int] = set()
        todo = [block.index]
        while todo:
            for before in map(self.find, self.all_blocks[todo.pop()].before):
                if before == earlier:
                    return True
                if before > earlier and before not in seen:
                    seen.add(before)
                    todo.append(before)
        return False

    def _merge(
        self, equation: Equation, sibling: Growing, latest: Growing, moved: list[Positions]
    ) -> list[Positions] | None:
        """Makes `sibling` part of `latest` if the equation preserves both; else None."""
        if any(self.find(block) < latest.index for block in sibling.after):
            return None  # a block in between reads the sibling: it could not run later
        theirs = [i for i, v in enumerate(equation.inputs) if sibling.index in self._roots(v)]
        if not all(self._carries(equation.inputs[i], sibling) for i in theirs):
            return None
        other = self._move(equation, theirs)
        if isinstance(other, str):
            return None
        ours = [i for i, v in enumerate(equation.inputs) if latest.index in self._roots(v)]
        pairs = self._pairs(equation.op, (ours, moved), (theirs, other))
        if pairs is None:
            return None
        pairs.update(self._contracted_pair(sibling, latest))

        self._parent[sibling.index] = latest.index
        latest.seeds = sorted(latest.seeds + sibling.seeds)
        latest.members = sorted(latest.members + sibling.members)
        latest.before |= {block for block in sibling.before if self.find(block) != latest.index}
        latest.after |= sibling.after
        latest.ended_by.update(sibling.ended_by)
        for identity in sibling.candidates:
            into = pairs.get(identity)
            if into is None:
                latest.candidates.append(identity)
                continue
            self._candidate_parent[identity] = into
            mine, old = self.candidates[into], self.candidates[identity]
            self.candidates[into] = replace(
                mine,
                extent=math.gcd(mine.extent, old.extent),
                seeds={**old.seeds, **mine.seeds},
            )
        return [
            {**{pairs.get(c, c): where for c, where in b.items()}, **a}
            for a, b in zip(moved, other, strict=True)
        ]

    def _pairs(
        self,
        op: Op,
        mine: tuple[list[int], list[Positions]],
        other: tuple[list[int], list[Positions]],
    ) -> dict[int, int] | None:
        """Which candidate of the other block is which of mine: those that meet in one dim.

        A candidate that meets none is fine where the other side has no such dim (broadcast).
        """
        assert op.map is not None
        pairs: dict[int, int] = {}
        for result, (a, b) in enumerate(zip(mine[1], other[1], strict=True)):
            at = {dim: identity for identity, (dim, _) in a.items()}
            dims = op.map.results[result]
            for identity, (dim, extent) in b.items():
                partner = at.pop(dim, None)
                if partner is None:
                    if _present(op, mine[0], dims[dim][0]):
                        return None
                    continue
                common = math.gcd(extent, a[partner][1])
                if pairs.setdefault(identity, partner) != partner or not (
                    self._still_divides(identity, common) and self._still_divides(partner, common)
                ):
                    return None
            if any(_present(op, other[0], dims[dim][0]) for dim in at):
                return None
        return pairs

    def _contracted_pair(self, sibling: Growing, latest: Growing) -> dict[int, int]:
        """Contracted candidates leave no dim to meet in: they pair if the same axes fit both."""

        def contracted(block: Growing) -> list[int]:
            return [c for c in block.candidates if self.candidates[c].kind is Kind.CONTRACTED]

        pairs = zip(contracted(sibling), contracted(latest), strict=False)
        return {
            a: b
            for a, b in pairs
            if self._fitting(a) == self._fitting(b)
            and math.gcd(self.candidates[a].extent, self.candidates[b].extent) > 1
        }

    def _fitting(self, identity: int) -> list[int]:
        return [size for size in self._sizes if self.candidates[identity].extent % size == 0]


def _present(op: Op, operands: list[int], factor: int) -> bool:
    """Whether any of the operands has a dim made of this factor."""
    assert op.map is not None
    return any(factor in dim for i in operands for dim in op.map.operands[i])
