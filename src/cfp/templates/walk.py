"""One mesh axis, from the start of the step to its end: each block decided where it is reached.

The walk knows how tensors lie along the axis so far. At a block's first seed it asks `decide` for
a candidate (None: replicated), and goes on with the layouts that follow. Several axes are several
walks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cfp.analysis import Analysis
from cfp.blocks import Block, SeedSplit
from cfp.layouts.carry import OPEN, Carry, PartialLayout, splits
from cfp.trace import Equation, Role

# (block, its first seed, how the seed's operands lie) -> candidate
Decide = Callable[[Block, Equation, Sequence[int | None]], int | None]


def walk(
    analysis: Analysis, size: int, start: Mapping[int, int], decide: Decide
) -> list[int | None]:
    """Returns a candidate per block for an axis of `size`; `start` says which arguments are split:
    value -> dim."""
    graph, blocks = analysis.graph, analysis.grouping
    carry = Carry((size,))
    layouts: dict[int, PartialLayout] = {value: (dim,) for value, dim in start.items()}
    chosen: dict[int, int | None] = {}
    seed_of = {seed: block for block in blocks.blocks for seed in block.seeds}
    owner = {value: block for block in blocks.blocks for value in block.splits}
    for equation in graph.role(Role.FORWARD):
        if equation.op.map is None:
            continue
        reads = [layouts.get(value, (None,)) for value in equation.inputs]
        block = seed_of.get(equation.index)
        if block is not None and block.index not in chosen:
            chosen[block.index] = decide(block, equation, [layout[0] for layout in reads])
        for j, value in enumerate(equation.outputs):
            home = owner.get(value)
            if home is not None and chosen.get(home.index) is not None:
                dim = home.splits[value][chosen[home.index]]  # type: ignore[index]
                layouts[value] = (dim,)
                continue
            options = [
                carry.to_result(equation.op, i, j, layout)[0] for i, layout in enumerate(reads)
            ]
            dim = next((d for d in options if splits(d)), None)
            layouts[value] = carry.fit((dim,), graph.values[value].shape)
    assert OPEN not in {layout[0] for layout in layouts.values()}
    return [chosen.get(block.index) for block in blocks.blocks]


def split_of(block: Block, candidate: int, seed: Equation) -> SeedSplit | None:
    """Returns how a candidate splits a seed; None where it leaves that one of several seeds
    whole."""
    return block.candidates[candidate].seeds.get(seed.index)
