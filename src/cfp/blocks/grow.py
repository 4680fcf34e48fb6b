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
from dataclasses import replace

from cfp.blocks.batch import Batch
from cfp.blocks.block import Candidate, SeedSplit
from cfp.blocks.contraction import seed_dims
from cfp.blocks.operands import OPERANDS
from cfp.blocks.ownership import Growing, Ownership, Positions
from cfp.blocks.siblings import find_siblings, merge
from cfp.blocks.words import Operand, SplitName, name_split
from cfp.trace import LOOP_ENTER, LOOP_EXIT, LOOP_PRIMITIVES, Equation, Graph, Role

LOOP_ENDS = {LOOP_ENTER: "a loop begins", LOOP_EXIT: "the loop's iteration ends"}


class Growth(Ownership):
    """The sweep over the equations that grows the blocks."""

    def __init__(
        self,
        graph: Graph,
        parameters: frozenset[int],
        batch: Batch,
        mesh_shape: tuple[int, ...],
        *,
        sequence: bool,
        cuts: frozenset[int],
    ) -> None:
        super().__init__(graph, parameters, mesh_shape, cuts=cuts)
        self.batch = batch
        self.sequence = sequence
        self._from_parameter: set[int] = set(parameters)
        self._varying: set[int] = set(graph.inputs)

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
        """Returns whether an equation is a contraction of anything but constants, or a lookup in a
        parameter."""
        if equation.primitive not in OPERANDS or equation.opaque:
            return False
        if self._varying.isdisjoint(equation.inputs):
            return False
        return equation.primitive != "gather" or equation.inputs[0] in self._from_parameter

    def _seed(self, equation: Equation, sources: frozenset[int]) -> None:
        block = self.new_block(equation.loop, equation.index)
        self._depend(block, sources)
        for source in sources:
            if not self.all_blocks[source].ended_by:
                self.all_blocks[source].ended_by[f"{equation.primitive} starts a block"] = None
        parameter = tuple(value in self._from_parameter for value in equation.inputs)
        dims = seed_dims(
            equation.op,
            sequence=self.sequence,
            parameter=parameter,
            divides=lambda size: all(size % parts == 0 for parts in self.sizes),
        )
        positions: Positions = {}
        names = self._names(equation, [dim.split for dim in dims])
        for dim, name in zip(dims, names, strict=True):
            if dim.extent == 1:
                continue
            identity = self.new_candidate(
                Candidate(name.value, name, dim.extent, {equation.index: dim.split})
            )
            block.candidates.append(identity)
            if dim.split.result_dim is not None:
                positions[identity] = (dim.split.result_dim, dim.extent)
        self._own(equation, block, [positions])

    def _names(self, seed: Equation, splits: list[SeedSplit]) -> list[SplitName]:
        pair = [seed.inputs[i] for i in sorted(OPERANDS[seed.primitive])]
        operands = [self._operand(v, depends=not self.batch.varying.isdisjoint(pair)) for v in pair]
        seen: set[tuple[int, ...]] = set()
        names: list[SplitName] = []
        for split in splits:
            dims = split.operand_dims[:2]
            where = tuple(i for i, dim in enumerate(dims) if dim is not None)
            names.append(
                name_split(
                    operands,
                    dims,
                    sums=split.result_dim is None,
                    lookup=seed.primitive == "gather",
                    first=where not in seen,
                )
            )
            seen.add(where)
        return names

    def _operand(self, value: int, *, depends: bool) -> Operand:
        """Returns what the operand of a seed is; `depends` says that some operand of the seed
        depends on the data."""
        if value in self._from_parameter:
            return Operand(weight=True, batch=frozenset())
        if value in self.batch.varying or not self.batch.arguments:
            return Operand(weight=False, batch=self.batch.dims.get(value))
        return Operand(weight=depends, batch=frozenset())

    def _join(self, equation: Equation, sources: frozenset[int]) -> bool:
        latest = self.all_blocks[max(sources)]
        if equation.primitive in LOOP_PRIMITIVES or latest.loop != equation.loop:
            if equation.primitive in LOOP_ENDS:
                latest.ended_by[LOOP_ENDS[equation.primitive]] = None
            return False
        mine: list[int] = []
        for i, value in enumerate(equation.inputs):
            if latest.index in self.roots(value):
                if not self.carries(value, latest):
                    if value in self.cuts:
                        latest.ended_by["split at a smaller tensor"] = None
                    return False
                mine.append(i)
        if equation.opaque:
            latest.ended_by[f"{equation.primitive} is opaque"] = None
            return False
        moved = self.move(equation, mine)
        if isinstance(moved, str):
            latest.ended_by[moved] = None
            return False
        contracts = equation.primitive in OPERANDS
        for sibling in find_siblings(self, equation, latest, sources):
            merged = merge(self, equation, sibling, latest, moved)
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

    def _depend(self, block: Growing, sources: frozenset[int]) -> None:
        for source in sources - {block.index}:
            block.before.add(source)
            self.all_blocks[source].after.add(block.index)

    def _own(self, equation: Equation, block: Growing, positions: list[Positions]) -> None:
        for output, where in zip(equation.outputs, positions, strict=True):
            self.owner[output] = block.index
            self.positions[output] = where
            self.sources[output] = frozenset({block.index})
