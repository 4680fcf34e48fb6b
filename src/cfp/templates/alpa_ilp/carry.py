"""How an operation without a choice of its own carries the layout of the operand it follows.

Cut along an axis, the followed operand's dim leads somewhere in the operation's map:

    every result has it too             the results are cut there, and so are other operands
    a reduction sums it away            partial results, completed by an all-reduce
    anything else (a slice, a sort)     the operand is first gathered along this axis

Alpa has the last rule for sorts alone and forbids what a reshape or slice cannot carry; priced, it
always leaves a way. `operand_groups` takes operations apart that are several side by side, as
barriers are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cfp.affine import OpMap
from cfp.affine.factors import Dims
from cfp.layouts import Layout, transfer
from cfp.templates.alpa_ilp.cost import Cluster
from cfp.templates.alpa_ilp.ways import Way
from cfp.trace import Op


@dataclass(frozen=True, slots=True)
class OperandGroup:
    """Operands and results of an operation that have to do with each other."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


def operand_groups(op: Op) -> list[OperandGroup]:
    """Returns the results of the operation, grouped by the operands they share."""
    operands, results = range(len(op.in_shapes)), range(len(op.out_shapes))
    feeds = op.map.feeds if op.map is not None else None
    if feeds is None:
        return [OperandGroup(tuple(operands), tuple(results))]
    groups: list[tuple[set[int], list[int]]] = []
    for result in results:
        ours, mine = set(feeds[result]), [result]
        for other in [group for group in groups if group[0] & ours]:
            groups.remove(other)
            ours |= other[0]
            mine += other[1]
        groups.append((ours, mine))
    return [OperandGroup(tuple(sorted(ours)), tuple(sorted(mine))) for ours, mine in groups]


def carry(
    mapping: OpMap, group: OperandGroup, operand: int, layout: Layout, cluster: Cluster
) -> Way:
    """Returns the way of a group whose `operand` comes in `layout`; the other operands follow."""
    source = mapping.operands[operand]

    def to(target: Dims, kept: Layout) -> Layout:
        return transfer(mapping.sizes, source, target, kept, cluster.shape)

    there = [to(mapping.results[result], layout) for result in group.results]
    sums = _sums(mapping, group, operand, layout, cluster)
    kept = tuple(
        dim if axis in sums or all(result[axis] is not None for result in there) else None
        for axis, dim in enumerate(layout)
    )
    asked = {other: to(mapping.operands[other], kept) for other in group.operands}
    asked[operand] = kept
    made = {result: to(mapping.results[result], kept) for result in group.results}
    return Way(
        tuple(asked[other] for other in group.operands),
        tuple(made[result] for result in group.results),
        sums,
    )


def _sums(
    mapping: OpMap, group: OperandGroup, operand: int, layout: Layout, cluster: Cluster
) -> tuple[int, ...]:
    """Returns the axes whose split a reduction consumes."""
    kept = {factor for result in group.results for dim in mapping.results[result] for factor in dim}
    found: list[int] = []
    for dim in {dim for dim in layout if dim is not None}:
        factors = mapping.operands[operand][dim]
        if not factors or any(f in kept or f not in mapping.reduced for f in factors):
            continue
        extent, count = math.prod(mapping.sizes[f] for f in factors), 1
        for axis, at in enumerate(layout):
            if at == dim:
                count *= cluster.shape[axis]
                if extent % count == 0:
                    found.append(axis)
    return tuple(sorted(found))
