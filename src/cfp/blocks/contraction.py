"""Contractions, and the dims of each that may be split.

A contraction is a `dot_general`, a convolution, or a lookup in a parameter. Read through its
map, the three are alike: with `lhs` the activation-like operand and `rhs` the other,

    batch       factors of lhs, rhs and result          (batched matmul, expert dim)
    rows        factors of lhs and result               (batch and sequence; looked-up positions)
    columns     factors of rhs and result               (output features)
    contracted  factors that are summed away            (input features; the vocabulary)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cfp.affine import OpMap, follow
from cfp.blocks.block import Kind, SeedSplit
from cfp.blocks.operands import OPERANDS
from cfp.trace import Op


@dataclass(frozen=True, slots=True)
class SeedDim:
    """One splittable dim of a contraction."""

    kind: Kind
    extent: int
    split: SeedSplit


def seed_dims(
    op: Op, *, sequence: bool, parameter: tuple[bool, ...], divides: Callable[[int], bool]
) -> list[SeedDim]:
    """The candidate dims of a contraction.

    Rows are one candidate at the granularity of their first dim (the batch), unless `sequence`
    asks for each; of a parameter's free dims the first that `divides` stands for all.
    """
    mapping = op.map
    assert mapping is not None
    lhs, rhs = OPERANDS[op.primitive]
    leading = {
        kind: _result_dims(mapping, wanted)
        for kind, wanted in (
            (Kind.BATCH, (lhs, rhs)),
            (Kind.ROWS, (lhs,)),
            (Kind.COLUMNS, (rhs,)),
        )
    }
    chosen: list[SeedDim] = []
    for kind, dims in leading.items():
        if kind is Kind.BATCH or (sequence and not parameter[lhs if kind is Kind.ROWS else rhs]):
            keep = dims
        else:
            owner = lhs if kind is Kind.ROWS else rhs
            keep = _one_of(dims, op, parameter[owner], divides)
        chosen += [_from_result(kind, op, dim) for dim in keep]
    chosen += _contracted(op, lhs, rhs, divides)
    return chosen


def flops(op: Op) -> float:
    """Multiply-adds of a contraction, times two; a lookup moves data and counts none."""
    mapping = op.map
    if mapping is None or op.primitive == "gather":
        return 0.0
    factors = {
        factor for dims in (*mapping.operands, *mapping.results) for dim in dims for factor in dim
    }
    return 2.0 * math.prod(mapping.sizes[factor] for factor in factors)


def _result_dims(mapping: OpMap, wanted: tuple[int, ...]) -> list[int]:
    """Result dims whose leading factor is in just the operands `wanted`."""
    where = [{factor for dim in dims for factor in dim} for dims in mapping.operands]
    dims: list[int] = []
    for dim, factors in enumerate(mapping.results[0]):
        if factors and [factors[0] in here for here in where] == [
            i in wanted for i in range(len(where))
        ]:
            dims.append(dim)
    return dims


def _one_of(
    dims: list[int], op: Op, is_parameter: bool, divides: Callable[[int], bool]
) -> list[int]:
    if not is_parameter:
        return dims[:1]
    fitting = [dim for dim in dims if divides(op.out_shapes[0][dim])]
    return (fitting or dims)[:1]


def _from_result(kind: Kind, op: Op, dim: int) -> SeedDim:
    mapping = op.map
    assert mapping is not None
    extent = op.out_shapes[0][dim]
    operand_dims: list[int | None] = []
    for operand in mapping.operands:
        there = follow(mapping.sizes, mapping.results[0], operand, dim, extent)
        operand_dims.append(there[0] if there else None)
        if there:
            extent = math.gcd(extent, there[1])
    return SeedDim(kind, extent, SeedSplit(tuple(operand_dims), dim))


def _contracted(op: Op, lhs: int, rhs: int, divides: Callable[[int], bool]) -> list[SeedDim]:
    """The first contracted dim that divides, as one candidate."""
    mapping = op.map
    assert mapping is not None
    options: list[SeedDim] = []
    for dim, factors in enumerate(mapping.operands[rhs]):
        if not factors or factors[0] not in mapping.reduced:
            continue
        extent = op.in_shapes[rhs][dim]
        dims: list[int | None] = [None] * len(mapping.operands)
        dims[rhs] = dim
        there = follow(mapping.sizes, mapping.operands[rhs], mapping.operands[lhs], dim, extent)
        if there:
            dims[lhs], extent = there
        elif op.primitive != "gather":
            continue  # a convolution's window: no dim of the other operand splits with it
        options.append(SeedDim(Kind.CONTRACTED, extent, SeedSplit(tuple(dims), None)))
    fitting = [option for option in options if divides(option.extent)]
    return (fitting or options)[:1]
