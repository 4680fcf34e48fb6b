"""What the strategies of the blocks ask for outright.

- A value that a block owns splits where the block's chosen candidates split it. After a contracted
  split it is OPEN: its partial sums may be completed into any layout. In a split stream it splits
  by rows, and so does its cotangent.
- A forward contraction reads its operands as its candidate says.
- A backward contraction y = x w  ->  dx = dy w', dw = x' dy  reads what it shares with the forward
  one as that did, and the cotangent dy as y was split. So no split of the forward pass costs the
  backward pass more than the sum that the contraction itself leaves.
- What the backward pass computes again lies as the first time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cfp.blocks import Block, Blocks, Strategy
from cfp.blocks.backward import SCATTERS
from cfp.blocks.operands import OPERANDS
from cfp.layouts.carry import OPEN, Carry, PartialLayout, splits
from cfp.layouts.layout import Layout
from cfp.trace import Equation, Graph, Role


@dataclass(frozen=True, slots=True)
class BlockLayouts:
    """`values`: what lies where; `operands`: (equation, operand) -> as it must be read. `streams`
    has the rows alone of the `values` that are in split streams, OPEN along the other axes."""

    values: Mapping[int, PartialLayout]
    operands: Mapping[tuple[int, int], Layout]
    results: Mapping[int, Layout]  # contraction -> its result's splits, None after a contracted one
    streams: Mapping[int, PartialLayout]


def lay_blocks(
    graph: Graph, blocks: Blocks, strategies: Sequence[Strategy], carry: Carry
) -> BlockLayouts:
    """Returns the layouts of the values and contractions of each block, by its strategy."""
    values: dict[int, PartialLayout] = {}
    operands: dict[tuple[int, int], Layout] = {}
    results: dict[int, Layout] = {}
    streams: dict[int, PartialLayout] = {}
    for block, strategy in zip(blocks.blocks, strategies, strict=True):
        rows = _rows(block, strategy, carry)
        streams.update(rows)
        for value, dims in block.splits.items():
            owned = _owned(dims, strategy)
            values[value] = carry.over(rows.get(value, carry.open), owned)
        for member in block.members:
            equation = graph.equations[member]
            if member in block.seeds:
                reads, result = _seed(block, equation, strategy)
            elif equation.primitive in OPERANDS and equation.op.map is not None:
                reads, result = _member(equation, values, carry)
            else:
                continue
            results[member] = result
            operands.update({(member, i): layout for i, layout in enumerate(reads)})
    for equation in graph.role(Role.BACKWARD):
        forward = blocks.matched.get(equation.index)
        if forward is None or forward not in results or equation.op.map is None:
            continue
        cotangent, found = _backward(graph, blocks, equation, forward, operands, results, carry)
        operands.update({(equation.index, i): layout for i, layout in found.items()})
        (made,) = graph.equations[forward].outputs
        if cotangent is not None and made in streams:
            value = equation.inputs[cotangent]
            streams[value] = streams[made]
            values[value] = carry.over(streams[made], values.get(value, carry.open))
    return BlockLayouts(values, operands, results, streams)


def _rows(block: Block, strategy: Strategy, carry: Carry) -> dict[int, PartialLayout]:
    """Returns the rows by which the values of a block lie split; nothing where no axis takes a
    twin."""
    chosen = block.split_rows(strategy, carry.mesh_shape)
    if chosen is None:
        raise ValueError(f"Block {block.index} has no rows to split by {strategy}.")
    if all(rows is None for rows in chosen):
        return {}
    return {
        value: tuple(OPEN if rows is None else block.rows[rows].dims[value] for rows in chosen)
        for value in block.splits
    }


def _owned(dims: Sequence[int | None], strategy: Strategy) -> PartialLayout:
    found: list[int | None] = []
    for candidate in strategy:
        if candidate is None:
            found.append(None)
        else:
            dim = dims[candidate]
            found.append(OPEN if dim is None else dim)
    return tuple(found)


def _seed(block: Block, seed: Equation, strategy: Strategy) -> tuple[list[Layout], Layout]:
    """Returns the layouts that the candidates say; a candidate that does not reach this seed of
    several leaves it whole."""
    chosen = [
        None if candidate is None else block.candidates[candidate].seeds.get(seed.index)
        for candidate in strategy
    ]
    reads = [
        tuple(None if split is None else split.operand_dims[i] for split in chosen)
        for i in range(len(seed.inputs))
    ]
    return reads, tuple(None if split is None else split.result_dim for split in chosen)


def _member(
    equation: Equation, values: Mapping[int, PartialLayout], carry: Carry
) -> tuple[list[Layout], Layout]:
    """Returns the layouts of a contraction inside a block: its operands are split as their owners
    split them, or as follows."""
    op = equation.op
    result = values.get(equation.outputs[0], carry.open)
    known = [values.get(value, carry.open) for value in equation.inputs]
    reads: list[Layout] = []
    for i in range(len(equation.inputs)):
        layout = carry.settle(known[i])
        others = [carry.to_operand(op, 0, i, result)]
        others += [carry.across(op, j, i, known[j]) for j in range(len(known)) if j != i]
        for other in others:
            layout = tuple(
                b if a is None and splits(b) else a for a, b in zip(layout, other, strict=True)
            )
        reads.append(carry.fit(layout, op.in_shapes[i]))
    return reads, carry.settle(result)


def _backward(
    graph: Graph,
    blocks: Blocks,
    equation: Equation,
    forward: int,
    operands: Mapping[tuple[int, int], Layout],
    results: Mapping[int, Layout],
    carry: Carry,
) -> tuple[int | None, dict[int, Layout]]:
    """Returns which operand of a backward contraction is the cotangent of the result, if any is,
    and how it reads its operands.

    One that is neither shared nor a cotangent of the result's own shape is left to the sweep. A
    product of a tensor with itself shares both operands: the part that suits the cotangent counts.
    """
    origin = graph.equations[forward]
    same = blocks.recomputed.same
    slots = {
        i: [
            operands[forward, j]
            for j, other in enumerate(origin.inputs)
            if same.get(value, value) == other and (forward, j) in operands
        ]
        for i, value in enumerate(equation.inputs)
    }
    if equation.index in blocks.recomputed.equations and equation.op is origin.op:
        return None, {i: operands[forward, i] for i in slots if (forward, i) in operands}
    shape = graph.values[origin.outputs[0]].shape
    cotangent = next(
        (
            i
            for i, value in enumerate(equation.inputs)
            if not slots[i] and graph.values[value].shape == shape
        ),
        None,
    )
    found: dict[int, Layout] = {}
    for i, options in slots.items():
        if not options:
            continue
        best = options[0]
        if cotangent is not None:
            wanted = results[forward]
            reads = [_beside(equation, i, cotangent, option, wanted, carry) for option in options]
            best = options[reads.index(wanted) if wanted in reads else 0]
            found[cotangent] = _beside(equation, i, cotangent, best, wanted, carry)
        found[i] = best
    if equation.primitive in SCATTERS:  # adds into zeros that lie as the table does
        table = OPERANDS[origin.primitive][1]
        found[0] = operands[forward, table]
    return cotangent, found


def _beside(
    equation: Equation, shared: int, cotangent: int, layout: Layout, wanted: Layout, carry: Carry
) -> Layout:
    """Returns the cotangent's layout next to the shared operand's: as wanted, where the two
    agree."""
    op = equation.op
    assert op.map is not None
    moved = carry.across(op, shared, cotangent, layout)
    here = {factor for dim in op.map.operands[shared] for factor in dim}
    found: list[int | None] = []
    for axis, dim in enumerate(wanted):
        there = moved[axis]
        if layout[axis] is not None:
            found.append(there if splits(there) else None)
        else:
            factors = op.map.operands[cotangent][dim] if dim is not None else ()
            found.append(dim if factors and factors[0] not in here else None)
    return carry.fit(tuple(found), op.in_shapes[cotangent])
