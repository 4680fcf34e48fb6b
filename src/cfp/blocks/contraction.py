"""Contractions, and the dims of each that may be split.

A contraction is a `dot_general`, a convolution, or a lookup in a parameter. Read through its
map, the three are alike: with operands `lhs` and `rhs` (of a lookup, indices and table),

    shared   factors of lhs, rhs and result
    free     factors of one operand and result
    summed   factors that are summed away (of a lookup: the entries of the table)

What these are to a person depends on what the operands are: see `words`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cfp.affine import OpMap, follow
from cfp.blocks.block import SeedSplit
from cfp.blocks.operands import OPERANDS
from cfp.trace import Op


@dataclass(frozen=True, slots=True)
class SeedDim:
    """One splittable dim of a contraction."""

    extent: int
    split: SeedSplit


def seed_dims(
    op: Op, *, sequence: bool, parameter: tuple[bool, ...], divides: Callable[[int], bool]
) -> list[SeedDim]:
    """Returns the candidate dims of a contraction.

    An activation's free dims are one candidate at the granularity of the first (the batch),
    unless `sequence` asks for each; of a parameter's the first that `divides` stands for all.
    """
    mapping = op.map
    assert mapping is not None
    lhs, rhs = OPERANDS[op.primitive]
    chosen = [_from_result(op, dim) for dim in _result_dims(mapping, (lhs, rhs))]
    for owner in (lhs, rhs):
        dims = _result_dims(mapping, (owner,))
        if parameter[owner] or not sequence:
            dims = _one_of(dims, op, parameter[owner], divides)
        chosen += [_from_result(op, dim) for dim in dims]
    chosen += _summed(op, lhs, rhs, divides)
    return chosen


def flops(op: Op) -> float:
    """Returns the multiply-adds of a contraction, times two: for every element of the result, one
    for everything that is summed. Holes between the elements of a convolution's operand (the
    gradient of one with a stride) count none, and neither does a lookup, which moves data."""
    mapping = op.map
    if mapping is None or op.primitive == "gather":
        return 0.0
    summed = math.prod(mapping.sizes[factor] for factor in mapping.reduced)
    holes = math.prod(op.params.get("lhs_dilation") or ())
    return 2.0 * math.prod(op.out_shapes[0]) * summed / holes


def _result_dims(mapping: OpMap, wanted: tuple[int, ...]) -> list[int]:
    """Returns the result dims whose leading factor is in just the operands `wanted`."""
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


def _from_result(op: Op, dim: int) -> SeedDim:
    mapping = op.map
    assert mapping is not None
    extent = op.out_shapes[0][dim]
    operand_dims: list[int | None] = []
    for operand in mapping.operands:
        there = follow(mapping.sizes, mapping.results[0], operand, dim, extent)
        operand_dims.append(there[0] if there else None)
        if there:
            extent = math.gcd(extent, there[1])
    return SeedDim(extent, SeedSplit(tuple(operand_dims), dim))


def _summed(op: Op, lhs: int, rhs: int, divides: Callable[[int], bool]) -> list[SeedDim]:
    """Returns the first summed dim that divides, as one candidate."""
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
        options.append(SeedDim(extent, SeedSplit(tuple(dims), None)))
    fitting = [option for option in options if divides(option.extent)]
    return (fitting or options)[:1]
