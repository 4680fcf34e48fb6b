"""The ways to compute an operation that has a choice of its own, and to hold a tensor.

A split of an operation is a factor of its map that leads a dim of some operand or result: cut
into n parts, every tensor that has the factor is cut along the dim it leads, the others are
whole. Where a reduction consumes it, partial results remain and an all-reduce completes them.
Alpa sees dots whose rows, columns and summed dims are merged into one dim each, and can cut only
the leading one. So of the splits alike (in the same operands, and in the result or summed) one
stands for all: the first whose size divides. Batch dims, in all operands and the result, each
stand for themselves.

    one axis      each split is a way
    more axes     each axis takes another split. Where there are batch dims, as many of them as
                  there are axes must be taken (batch_matmul_always_split_batch)
    mixed shape   (option) rows, summed dim or a batch dim take all axes
    recompute     a summed dim takes one axis, the others repeat the work: forbidden unless
                  allow_recompute_heavy_op, then charged an all-reduce of both operands

A lookup has the splits of what Alpa rewrites it into, a dot with a one-hot matrix, and so has its
transpose, a scatter; each axis takes another split or, as Alpa lets gathers and scatters, none.
A dot that nothing of this can cut leaves as few axes idle as possible, at no cost: Alpa would pad.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations, product

from cfp.affine import follow
from cfp.layouts import Layout, fits
from cfp.templates.alpa_ilp.cost import ALL_REDUCE, Cluster
from cfp.templates.alpa_ilp.options import AlpaOptions
from cfp.trace import Op

DOT, CONVOLUTION = "dot_general", "conv_general_dilated"


@dataclass(frozen=True, slots=True)
class Way:
    """Layouts that are asked of the operands, layouts of the results, and what it costs.

    sums: the axes along which the results are partial, until an all-reduce completes them.
    """

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    sums: tuple[int, ...] = ()
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """A way to split an operation: the dim of every operand and of the result; None where it stays
    whole."""

    operands: tuple[int | None, ...]
    result: int | None
    extent: int

    @property
    def kind(self) -> tuple[bool, ...]:
        return (*(dim is not None for dim in self.operands), self.result is not None)

    @property
    def is_batch(self) -> bool:
        return all(self.kind)


def is_contraction(op: Op) -> bool:
    """Returns whether an operation has ways of its own."""
    return op.map is not None and (
        op.primitive in (DOT, CONVOLUTION, "gather") or op.primitive.startswith("scatter")
    )


def contraction_ways(op: Op, cluster: Cluster, options: AlpaOptions) -> list[Way]:
    """Returns the ways of a dot, a convolution, a lookup or a scatter."""
    splits = _splits(op)
    if op.primitive not in (DOT, CONVOLUTION):
        return _lookup_ways(op, cluster, splits)
    groups = _groups(splits)
    ways = [_way(op, cluster, chosen) for chosen in _choices(groups, cluster)]
    if options.allow_mixed_mesh_shape and len(cluster.axes) > 1:
        ways += _flat_ways(op, cluster, groups)
    if options.allow_recompute_heavy_op and op.primitive == DOT:
        ways += _recompute_ways(op, cluster, groups)
    for idle in range(1, len(cluster.axes) + 1):
        ways = ways or _partial_ways(op, cluster, groups, idle)
    return list(dict.fromkeys(ways))


def tensor_layouts(
    shape: tuple[int, ...], cluster: Cluster, options: AlpaOptions
) -> tuple[list[Layout], list[Layout]]:
    """Returns the layouts with one dim along one axis and, where the mesh may be mixed, one dim
    along all axes."""
    n = len(cluster.shape)

    def cut(dim: int, axes: tuple[int, ...]) -> Layout:
        return tuple(dim if axis in axes else None for axis in range(n))

    dims = range(len(shape))
    single = [cut(dim, (axis,)) for dim, axis in product(dims, cluster.axes)]
    several = options.allow_mixed_mesh_shape and len(cluster.axes) > 1
    flat = [cut(dim, cluster.axes) for dim in dims] if several else []
    return (
        [layout for layout in single if fits(layout, shape, cluster.shape)],
        [layout for layout in flat if fits(layout, shape, cluster.shape)],
    )


def all_layouts(shape: tuple[int, ...], cluster: Cluster) -> list[Layout]:
    """Returns every way to give each axis a dim of its own, or none."""
    found: list[Layout] = []
    options = [(None, *range(len(shape))) if size > 1 else (None,) for size in cluster.shape]
    for layout in product(*options):
        dims = [dim for dim in layout if dim is not None]
        if len(set(dims)) == len(dims) and fits(layout, shape, cluster.shape):
            found.append(layout)
    return found


def _splits(op: Op) -> list[Split]:
    """Returns each factor that leads a dim wherever it occurs, in the order of the tensors'
    dims."""
    mapping = op.map
    assert mapping is not None
    tensors = (*mapping.operands, mapping.results[0])
    allowed = _channel_dims(op)
    found: dict[int, Split] = {}
    for tensor in tensors:
        for dim, factors in enumerate(tensor):
            if not factors or factors[0] in found:
                continue
            lead, extent = factors[0], math.prod(mapping.sizes[f] for f in factors)
            dims: list[int | None] = []
            for other in tensors:
                there = follow(mapping.sizes, tensor, other, dim, extent)
                inside = any(lead in others for others in other)
                if inside and there is None:
                    break
                dims.append(there[0] if there else None)
                extent = math.gcd(extent, there[1]) if there else extent
            else:
                known = dims[-1] is not None or lead in mapping.reduced
                if known and all(d is None or d in ok for d, ok in zip(dims, allowed, strict=True)):
                    found[lead] = Split(tuple(dims[:-1]), dims[-1], extent)
    return list(found.values())


def _channel_dims(op: Op) -> list[frozenset[int]]:
    """Returns the dims that may be split, for each operand and the result: a convolution's space is
    not among them."""
    if op.primitive == CONVOLUTION:
        numbers = op.params["dimension_numbers"]
        specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
        return [frozenset(spec[:2]) for spec in specs]
    shapes = (*op.in_shapes, op.out_shapes[0])
    return [frozenset(range(len(shape))) for shape in shapes]


def _groups(splits: list[Split]) -> list[list[Split]]:
    """Splits alike together; every batch dim on its own."""
    found: dict[object, list[Split]] = {}
    for i, split in enumerate(splits):
        found.setdefault(i if split.is_batch else split.kind, []).append(split)
    return list(found.values())


def _pick(group: list[Split], parts: int) -> Split | None:
    return next((split for split in group if split.extent % parts == 0), None)


def _choices(groups: list[list[Split]], cluster: Cluster) -> Iterator[dict[int, Split]]:
    """Returns a dict: yields dicts axis -> split in which all axes are taken, by as many batch dims
    as can be."""
    axes = cluster.axes
    found: list[dict[int, Split]] = []
    for taken in permutations(groups, len(axes)):
        picked = [
            _pick(group, cluster.shape[axis]) for axis, group in zip(axes, taken, strict=True)
        ]
        if all(picked):
            found.append({a: s for a, s in zip(axes, picked, strict=True) if s is not None})
    if len(axes) > 1:
        most = max((_batches(chosen) for chosen in found), default=0)
        found = [chosen for chosen in found if _batches(chosen) == most]
    yield from found


def _batches(chosen: dict[int, Split]) -> int:
    return sum(split.is_batch for split in chosen.values())


def _way(op: Op, cluster: Cluster, chosen: dict[int, Split], cost: float = 0.0) -> Way:
    axes = range(len(cluster.shape))

    def layout(dims: dict[int, int | None]) -> Layout:
        return tuple(dims.get(axis) for axis in axes)

    operands = tuple(
        layout({axis: split.operands[k] for axis, split in chosen.items()})
        for k in range(len(op.in_shapes))
    )
    result = layout({axis: split.result for axis, split in chosen.items()})
    sums = tuple(axis for axis, split in sorted(chosen.items()) if split.result is None)
    return Way(operands, (result,), sums, cost)


def _flat_ways(op: Op, cluster: Cluster, groups: list[list[Split]]) -> list[Way]:
    """Returns the ways with all axes on one dim: a batch dim where there are any, else the rows or
    the summed dim."""
    parts = math.prod(cluster.shape)
    batches = [group for group in groups if group[0].is_batch]
    others = [group for group in groups if group[0].operands[0] is not None]
    picked = [_pick(group, parts) for group in batches or others]
    return [_way(op, cluster, dict.fromkeys(cluster.axes, split)) for split in picked if split]


def _recompute_ways(op: Op, cluster: Cluster, groups: list[list[Split]]) -> list[Way]:
    if len(cluster.axes) < 2 or any(group[0].is_batch for group in groups):
        return []
    size_bytes = sum(math.prod(shape) for shape in op.in_shapes) * int(op.out_dtypes[0].itemsize)
    cost = sum(cluster.price(ALL_REDUCE, size_bytes, axis) for axis in range(len(cluster.shape)))
    summed = [group for group in groups if group[0].result is None]
    picked = [(a, _pick(group, cluster.shape[a])) for group in summed for a in cluster.axes]
    return [_way(op, cluster, {axis: split}, cost) for axis, split in picked if split]


def _partial_ways(op: Op, cluster: Cluster, groups: list[list[Split]], idle: int) -> list[Way]:
    """Returns ways that leave `idle` axes idle, the others taken by different splits."""
    ways: list[Way] = []
    for axes in combinations(cluster.axes, len(cluster.axes) - idle):
        for taken in permutations(groups, len(axes)):
            picked = {
                axis: _pick(group, cluster.shape[axis])
                for axis, group in zip(axes, taken, strict=True)
            }
            if all(picked.values()):
                ways.append(_way(op, cluster, {a: s for a, s in picked.items() if s}))
    return ways


def _lookup_ways(op: Op, cluster: Cluster, splits: list[Split]) -> list[Way]:
    """Returns ways in which each axis takes another split, or none."""
    groups = [[split] for split in splits]
    idle = range(len(cluster.axes) + 1)
    return list(dict.fromkeys(w for n in idle for w in _partial_ways(op, cluster, groups, n)))
