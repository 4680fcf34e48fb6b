"""How one tensor lies on a mesh, and where a layout goes through an operation.

A `Layout` names, for each mesh axis, the dim that the axis splits; None: whole along that axis.
One dim may take several axes; the earlier axis of the mesh is then the major one. `transfer`
carries a layout from one tensor of an operation to another by Eq. 1 of the paper, each dim as far
as its sizes divide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec

from cfp.affine import follow
from cfp.affine.factors import Dims
from cfp.trace import LOOP_PRIMITIVES, Graph
from cfp.trace.recomputation import Recomputation

Layout = tuple[int | None, ...]  # per mesh axis: the dim it splits, None whole
Shape = tuple[int, ...]


def whole(axes: int) -> Layout:
    return (None,) * axes


def parts(layout: Layout, rank: int, mesh_shape: Shape) -> Shape:
    """Returns into how many parts each dim is split."""
    counts = [1] * rank
    for dim, size in zip(layout, mesh_shape, strict=True):
        if dim is not None:
            counts[dim] *= size
    return tuple(counts)


def fits(layout: Layout, shape: Shape, mesh_shape: Shape) -> bool:
    """Returns whether every dim divides into its parts."""
    if any(dim is not None and dim >= len(shape) for dim in layout):
        return False
    counts = parts(layout, len(shape), mesh_shape)
    return all(size % count == 0 for size, count in zip(shape, counts, strict=True))


def local_shape(layout: Layout, shape: Shape, mesh_shape: Shape) -> Shape:
    """Returns what one device holds."""
    counts = parts(layout, len(shape), mesh_shape)
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


def to_spec(layout: Layout, axis_names: Sequence[str]) -> PartitionSpec:
    """Returns the layout as JAX writes it, without trailing Nones."""
    dims = [dim for dim in layout if dim is not None]
    entries: list[Any] = []
    for dim in range(max(dims, default=-1) + 1):
        names = tuple(name for name, at in zip(axis_names, layout, strict=True) if at == dim)
        entries.append(names[0] if len(names) == 1 else names or None)
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]


def halfway(source: Layout, target: Layout) -> Layout | None:
    """Returns what to go through from one layout to another that gathers along some axes and splits
    along others: split first, which sends nothing, and less is gathered. A compiler that is not
    told may gather all of it. None where that is not the case, or where both would split one
    dim."""
    pairs = list(zip(source, target, strict=True))
    gathered = any(before is not None and after is None for before, after in pairs)
    fresh = {after for before, after in pairs if before is None and after is not None}
    if not gathered or not fresh or fresh & {*source}:
        return None
    return tuple(after if before is None else before for before, after in pairs)


def made_otherwise(
    graph: Graph, outputs: Sequence[Layout], known: Mapping[int, Layout]
) -> dict[int, Layout]:
    """Returns how those results are made that lie otherwise in the end, as ZeRO-1's new parameters.
    The compiler is told, and brings them there last: else it may bring an operand there, and
    compute them on every device. What an unknown operation or a loop makes is left to it."""
    found = {}
    for value, layout in zip(graph.outputs, outputs, strict=True):
        producer = graph.values[value].producer
        if producer is None or known.get(value, layout) == layout or not graph.values[value].shape:
            continue
        equation = graph.equations[producer]
        if equation.op.map is not None and equation.primitive not in LOOP_PRIMITIVES:
            found[value] = known[value]
    return found


def transfer(
    sizes: Sequence[int], source: Dims, target: Dims, layout: Layout, mesh_shape: Shape
) -> Layout:
    """Returns the layout that the splits of one tensor become in another of the same operation; a
    split that leads nowhere is None.

    Of a dim that takes several axes the minor ones are dropped where the sizes do not divide: a
    split into fewer parts still corresponds.
    """
    found: list[int | None] = [None] * len(layout)
    for dim in {dim for dim in layout if dim is not None}:
        extent = math.prod(sizes[factor] for factor in source[dim])
        there = follow(sizes, source, target, dim, extent)
        if there is None:
            continue
        count = 1
        for axis, at in enumerate(layout):
            if at == dim:
                count *= mesh_shape[axis]
                if there[1] % count:
                    break
                found[axis] = there[0]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Entry:
    """How a tensor enters a part of the step, and what it goes through on the way there. Operands
    whose entries have one `number` read one tensor, which is brought there once."""

    number: int
    layout: Layout
    via: Layout | None


@dataclass(frozen=True, slots=True)
class Layouts:
    """What a plan asks of the tensors of a step.

    `inputs` and `outputs` are in the order of the graph's. `values` constrains a tensor where it
    is made, `uses` where one equation reads it: (equation, operand) -> layout. `sums` says how
    partial sums are completed before they go on as `values` says: asked for the scattered result
    at once, a compiler may gather the operands instead and give up the split. `via` is what tensors
    go through on the way to how they are read. `entries` are the operands at which a tensor enters
    a part of the step otherwise than it was made; `uses` and `via` are what happens to it after
    that. `known` is how every tensor is expected to lie, told or not. `again` is what the backward
    pass computes again instead of keeping it.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    values: dict[int, Layout]
    uses: dict[tuple[int, int], Layout]
    sums: dict[int, Layout] = field(default_factory=dict)
    via: dict[tuple[int, int], Layout] = field(default_factory=dict)
    entries: dict[tuple[int, int], Entry] = field(default_factory=dict)
    known: dict[int, Layout] = field(default_factory=dict)
    again: tuple[Recomputation, ...] = ()

    def show(self, graph: Graph, names: Sequence[str]) -> str:
        """Returns a line for every argument and result, with its PartitionSpec."""

        def line(kind: str, value: int, layout: Layout) -> str:
            spec = ", ".join(map(repr, to_spec(layout, names)))
            return f"{kind} {graph.describe(value)}: P({spec})"

        pairs = zip(graph.inputs, self.inputs, strict=True)
        lines = [line("arg", value, layout) for value, layout in pairs]
        pairs = zip(graph.outputs, self.outputs, strict=True)
        return "\n".join([*lines, *(line("out", value, layout) for value, layout in pairs)])
