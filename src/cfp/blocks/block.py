"""What stage 2 returns: ParallelBlocks and the ways to split them.

A `Candidate` is one dim of a block that a mesh axis may split; every tensor of the block then
splits in the dim named in `Block.splits`, and no device needs another's part (Eq. 1 of the
paper). A `Strategy` picks a candidate, or None (replicated), for each mesh axis.

A candidate that leaves partial sums may have a twin that hands the sums on split by rows: see
`streams`. The strategies with twins are listed apart (`Block.stream_strategies`), because they are
worth measuring only where the strategy without is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cfp.blocks.recompute import Recomputed
from cfp.blocks.words import SplitName
from cfp.trace import Graph, source_line

Strategy = tuple[int | None, ...]  # per mesh axis: index into Block.candidates, None replicated


@dataclass(frozen=True, slots=True)
class SeedSplit:
    """How a candidate splits one contraction: a dim per operand, and of the result.

    None means whole. A contracted dim splits operands only: the result is a partial sum.
    """

    operand_dims: tuple[int | None, ...]
    result_dim: int | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dim that may be split into any number of parts that divides `extent`.

    `name` is the word for the split, numbered where a block has several candidates of that word.
    `stream_of` is the candidate that this one is the twin of: it splits the contractions in the
    same way, and the sums lie split by rows.
    """

    name: str
    split_name: SplitName
    extent: int
    seeds: Mapping[int, SeedSplit]  # contraction equation -> how this candidate splits it
    stream_of: int | None = None

    @property
    def sums(self) -> bool:
        """Returns whether the candidate splits a dim that is summed over: results are then partial
        sums."""
        return all(split.result_dim is None for split in self.seeds.values())

    def allows(self, parts: int) -> bool:
        return self.extent % parts == 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a block's sums: the batch, or the positions of a sequence. They may be split into any
    number of parts that divides `extent`; `dims` says in which dim of each value of the block."""

    extent: int
    dims: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Block:
    """A subgraph that stays split without communication.

    `seeds` are the contractions whose split decides the block (several where siblings joined);
    `members` the forward equations inside; `prologue` the forward equations placed with it
    because it reads them, or because nothing else does; `backward` the contractions of the
    backward pass that differentiate it. `splits[value][i]` is the dim that candidate i splits.
    `rows` are what a twin may split of the sums, those first that it prefers.
    """

    index: int
    seeds: tuple[int, ...]
    members: tuple[int, ...]
    prologue: tuple[int, ...]
    backward: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    splits: Mapping[int, tuple[int | None, ...]]
    inputs_from: tuple[int, ...]  # blocks whose values it reads
    ended_by: tuple[str, ...]
    loop: int | None
    flops: float
    cheap: bool  # few FLOPs next to the other blocks: every device may compute all of it
    rows: tuple[Rows, ...] = ()

    def strategies(self, mesh_shape: tuple[int, ...]) -> tuple[Strategy, ...]:
        """Returns every choice of a candidate per axis whose sizes divide.

        `replicated` joins only where nothing else is valid on an axis, or where the block is
        cheap next to the others. Where the axes are too many for the candidates (one dim of
        extent 2 on a mesh of 2x2), as few as possible are replicated. A sequence is not split along
        an axis that could split the batch instead: that divides the work alike, and attention needs
        nothing of other examples.
        """
        per_axis: list[list[int | None]] = []
        for size in mesh_shape:
            valid: list[int | None] = [
                i
                for i, candidate in enumerate(self.candidates)
                if candidate.allows(size) and candidate.stream_of is None
            ]
            if size == 1:
                valid = [None]
            elif not valid or self.cheap:
                valid.append(None)
            per_axis.append(valid)
        chosen = self._worthwhile(self._fitting(per_axis, mesh_shape))
        if not chosen:
            relaxed = self._fitting([[*valid, None] for valid in per_axis], mesh_shape)
            fewest = min(strategy.count(None) for strategy in relaxed)
            chosen = [strategy for strategy in relaxed if strategy.count(None) == fewest]
        return tuple(dict.fromkeys(chosen))

    def _worthwhile(self, fitting: list[Strategy]) -> list[Strategy]:
        """Returns the strategies without those that split a sequence in the place of the batch."""
        named = {
            name: [i for i, c in enumerate(self.candidates) if c.split_name is name]
            for name in (SplitName.BATCH, SplitName.SEQUENCE)
        }
        known = {*fitting}

        def better(strategy: Strategy) -> Iterator[Strategy]:
            for axis, candidate in enumerate(strategy):
                for batch in named[SplitName.BATCH] if candidate in sequences else ():
                    yield (*strategy[:axis], batch, *strategy[axis + 1 :])

        sequences = named[SplitName.SEQUENCE]
        return [one for one in fitting if known.isdisjoint(better(one))]

    def stream_strategies(self, mesh_shape: tuple[int, ...]) -> tuple[Strategy, ...]:
        """Returns the strategies with twins: those of `strategies` that leave partial sums, which
        lie split by rows along some of the axes, or all."""
        axes = range(len(mesh_shape))
        some = [set(s) for n in axes for s in itertools.combinations(axes, n + 1)]
        every = self.strategies(mesh_shape) if self.rows else ()
        found = {self.with_streams(one, split): None for one in every for split in some}
        return tuple(
            one
            for one in found
            if one not in every and self.split_rows(one, mesh_shape) is not None
        )

    def with_streams(self, strategy: Strategy, axes: Collection[int]) -> Strategy:
        """Returns the strategy with the twins of its candidates along the axes, where they have
        one."""
        twin = {c.stream_of: i for i, c in enumerate(self.candidates) if c.stream_of is not None}
        return tuple(
            twin[candidate] if axis in axes and candidate in twin else candidate
            for axis, candidate in enumerate(strategy)
        )

    def split_rows(
        self, strategy: Strategy, mesh_shape: tuple[int, ...]
    ) -> tuple[int | None, ...] | None:
        """Returns, for each axis that takes a twin, which of `rows` it splits, and None for the
        other axes; None alone where there are no rows for some axis.

        An axis takes the first rows that divide and that no other axis splits; else those that only
        earlier axes split, so that gathering them again keeps them in order.
        """
        value = self.seed_result
        taken: dict[int, list[int]] = {}  # rows -> the axes that split them
        streams = []
        for axis, candidate in enumerate(strategy):
            if candidate is not None and self.candidates[candidate].stream_of is not None:
                streams.append(axis)
            elif candidate is not None:
                dim = self.splits[value][candidate]
                for i, rows in enumerate(self.rows):
                    if rows.dims[value] == dim:
                        taken.setdefault(i, []).append(axis)
        found: list[int | None] = [None] * len(strategy)
        for axis in streams:
            fitting = [
                i
                for i, rows in enumerate(self.rows)
                if all(other < axis for other in taken.get(i, ()))
                and rows.extent % math.prod(mesh_shape[a] for a in (*taken.get(i, ()), axis)) == 0
            ]
            if not fitting:
                return None
            found[axis] = chosen = min(fitting, key=lambda i: len(taken.get(i, ())))
            taken.setdefault(chosen, []).append(axis)
        return tuple(found)

    @property
    def seed_result(self) -> int:
        """Returns the first value that the block makes, which is the result of a seed."""
        return min(self.splits)

    def _fitting(
        self, per_axis: list[list[int | None]], mesh_shape: tuple[int, ...]
    ) -> list[Strategy]:
        chosen: list[Strategy] = []
        for strategy in itertools.product(*per_axis):
            parts: dict[int, int] = {}
            for candidate, size in zip(strategy, mesh_shape, strict=True):
                if candidate is not None:
                    parts[candidate] = parts.get(candidate, 1) * size
            if all(self.candidates[i].allows(total) for i, total in parts.items()):
                chosen.append(strategy)
        return chosen

    def show(self, graph: Graph) -> str:
        lines = [f"block {self.index}" + (f" loop{self.loop}" if self.loop is not None else "")]
        for seed in self.seeds:
            equation = graph.equations[seed]
            shapes = " x ".join(
                "[" + ",".join(map(str, graph.values[v].shape)) + "]" for v in equation.inputs
            )
            lines.append(f"  seed {equation.primitive} {shapes} at {source_line(equation)}")
        for candidate in self.candidates:
            dims = ", ".join(
                f"{split.operand_dims}->{split.result_dim}" for split in candidate.seeds.values()
            )
            lines.append(f"  candidate {candidate.name}: extent {candidate.extent}, dims {dims}")
        if self.rows:
            extents = ", ".join(str(rows.extent) for rows in self.rows)
            lines.append(f"  rows that a split stream may split: {extents}")
        lines.append(
            f"  {len(self.members)} members, {len(self.prologue)} placed, "
            f"{len(self.backward)} backward contractions"
        )
        lines += [f"  ends: {reason}" for reason in self.ended_by]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks in the order their forward parts run, and where every forward equation went."""

    blocks: tuple[Block, ...]
    home: Mapping[int, int]  # forward equation -> block
    matched: Mapping[int, int]  # backward contraction -> forward contraction
    recomputed: Recomputed
    sources: Mapping[int, frozenset[int]]  # value -> blocks it comes from directly
    parameters: frozenset[int]  # argument values that training updates
    mesh_shape: tuple[int, ...]

    def show(self, graph: Graph) -> str:
        return "\n".join(block.show(graph) for block in self.blocks)
