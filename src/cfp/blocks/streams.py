"""Split streams: partial sums that lie split by rows until the next block wants them whole.

A block that is split by a dim it sums over leaves partial sums. An all-reduce completes them, and
every device then has the whole stream: it adds the residual, drops out and normalises all rows. A
reduce-scatter leaves each device some rows instead, on which these operations work as well, and an
all-gather brings them together where the next block reads them. Both send the same number of bytes;
of the stream a device computes and keeps only its part. (Megatron calls it sequence parallelism.)

Such a candidate gets a twin where this can gain: the block's sums meet a tensor of an earlier block
on equal terms (a residual add), or are the first that others are added to (an embedding); they go
on into another block; and no contraction comes between. The rows are the batch first, then the
other dims that only the activation has (the sequence). They are followed by the maps of the
operations, as candidates are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cfp.affine import follow
from cfp.blocks.block import Block, Blocks, Rows, SeedSplit
from cfp.blocks.operands import OPERANDS
from cfp.blocks.words import SplitName, split_stream
from cfp.trace import Equation, Graph, Role


def add_streams(graph: Graph, grouping: Blocks) -> Blocks:
    """Returns the blocks with twins for the candidates whose sums may go on split by rows."""
    streams = _on_streams(graph, grouping)
    blocks = tuple(
        _with_twins(graph, grouping, block) if block.index in streams else block
        for block in grouping.blocks
    )
    return replace(grouping, blocks=blocks)


def _on_streams(graph: Graph, grouping: Blocks) -> set[int]:
    """Returns the blocks that make a stream: one of their equations joins what the block makes with
    what an earlier one made, both of the result's shape. That one counts too if it reads no other:
    the stream begins with it."""
    found: set[int] = set()
    for block in grouping.blocks:
        for member in block.members:
            equation = graph.equations[member]
            if equation.primitive in OPERANDS or len(equation.outputs) != 1:
                continue
            shape = graph.values[equation.outputs[0]].shape
            for value in equation.inputs:
                sources = grouping.sources.get(value, frozenset())
                alike = graph.values[value].shape == shape
                if alike and sources and block.index not in sources:
                    begin = (s for s in sources if not grouping.blocks[s].inputs_from)
                    found |= {block.index, *begin}
    return found


def _with_twins(graph: Graph, grouping: Blocks, block: Block) -> Block:
    """Returns the block with a twin of each candidate that sums, if there are rows to split."""
    sizes = [size for size in grouping.mesh_shape if size > 1]
    rows = tuple(
        found for found in _rows(graph, block) if any(found.extent % size == 0 for size in sizes)
    )
    summing = [i for i, candidate in enumerate(block.candidates) if candidate.sums]
    if not rows or not summing or not _goes_on(graph, grouping, block):
        return block
    twins = [
        replace(candidate, name=split_stream(candidate.name), stream_of=i)
        for i, candidate in enumerate(block.candidates)
        if i in summing
    ]
    return replace(
        block,
        candidates=(*block.candidates, *twins),
        splits={value: (*dims, *[None] * len(twins)) for value, dims in block.splits.items()},
        rows=rows,
    )


def _goes_on(graph: Graph, grouping: Blocks, block: Block) -> bool:
    """Returns whether another block reads what the block makes; what is made in a loop may go round
    to the next iteration."""
    readers = (graph.equations[r] for value in block.splits for r in graph.readers[value])
    return block.loop is not None or any(
        reader.role is Role.FORWARD and grouping.home[reader.index] != block.index
        for reader in readers
    )


def _rows(graph: Graph, block: Block) -> list[Rows]:
    """Returns the rows of the block's sums; none where it contracts them further."""
    members = [graph.equations[member] for member in block.members]
    if any(e.primitive in OPERANDS and e.index not in block.seeds for e in members):
        return []
    starts = [_row_dims(block, graph.equations[seed]) for seed in block.seeds]
    found = []
    for dims in zip(*starts, strict=False):  # the same rows of every seed
        first = dict(zip(block.seeds, dims, strict=True))
        rows = _followed(graph, members, first)
        if rows is not None and rows.dims.keys() == block.splits.keys():
            found.append(rows)
    return found


def _row_dims(block: Block, seed: Equation) -> list[int]:
    """Returns the dims of a seed's result that are rows: the batch, then those that the weight does
    not have. A product of two activations has no rows but the batch."""
    mapping = seed.op.map
    assert mapping is not None
    batch = _split(block, seed, SplitName.BATCH)
    found = [] if batch is None or batch.result_dim is None else [batch.result_dim]
    made = _split(block, seed, SplitName.OUTPUT)
    if made is None:
        return found
    weight = next(i for i, dim in enumerate(made.operand_dims) if dim is not None)
    inside = {factor for dim in mapping.operands[weight] for factor in dim}
    found += [
        dim
        for dim, factors in enumerate(mapping.results[0])
        if factors and inside.isdisjoint(factors)
    ]
    return list(dict.fromkeys(found))


def _split(block: Block, seed: Equation, name: SplitName) -> SeedSplit | None:
    """Returns how the first candidate of a name splits a seed."""
    named = (c for c in block.candidates if c.split_name is name and seed.index in c.seeds)
    return next((candidate.seeds[seed.index] for candidate in named), None)


def _followed(graph: Graph, members: list[Equation], first: dict[int, int]) -> Rows | None:
    """Returns where rows go through a block; None where an operation does not keep them."""
    dims: dict[int, int] = {}
    extent = 0
    for equation in members:
        if equation.index in first:
            (value,) = equation.outputs
            dims[value] = first[equation.index]
            extent = math.gcd(extent, graph.values[value].shape[dims[value]])
            continue
        mapping = equation.op.map
        if mapping is None:
            return None
        for result, value in enumerate(equation.outputs):
            for operand, source in enumerate(equation.inputs):
                fed = mapping.feeds is None or operand in mapping.feeds[result]
                if source not in dims or not fed:
                    continue
                there = follow(
                    mapping.sizes,
                    mapping.operands[operand],
                    mapping.results[result],
                    dims[source],
                    extent,
                )
                if there is None or dims.setdefault(value, there[0]) != there[0]:
                    return None
                extent = math.gcd(extent, there[1])
    return Rows(extent, dims) if extent > 1 else None
