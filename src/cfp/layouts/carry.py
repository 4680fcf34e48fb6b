"""Layouts carried through the maps of operations, remembered per operation.

While a plan is being worked out a layout may be OPEN along an axis: nothing asks for a split there
and nothing forbids one. An axis that does not split the source says nothing of the target beyond
that: WHOLE stays None, OPEN stays OPEN, and a split that is lost on the way becomes OPEN.
"""

from __future__ import annotations

from cfp.affine import Dims
from cfp.layouts.layout import Layout, Shape, transfer
from cfp.trace import Op

OPEN = -1
PartialLayout = tuple[int | None, ...]  # as Layout, with OPEN where undecided


def splits(dim: int | None) -> bool:
    return dim is not None and dim >= 0


class Carry:
    """`to_result`, `to_operand` and `across` take and give partial layouts."""

    def __init__(self, mesh_shape: Shape) -> None:
        self.mesh_shape = mesh_shape
        self.open: PartialLayout = (OPEN,) * len(mesh_shape)
        self._known: dict[tuple[int, int, int, PartialLayout], PartialLayout] = {}
        self._fits: dict[tuple[PartialLayout, Shape], PartialLayout] = {}

    def to_result(self, op: Op, operand: int, result: int, layout: PartialLayout) -> PartialLayout:
        return self._move(op, operand, -1 - result, layout)

    def to_operand(self, op: Op, result: int, operand: int, layout: PartialLayout) -> PartialLayout:
        return self._move(op, -1 - result, operand, layout)

    def across(self, op: Op, source: int, target: int, layout: PartialLayout) -> PartialLayout:
        return self._move(op, source, target, layout)

    def settle(self, layout: PartialLayout) -> Layout:
        return tuple(None if dim == OPEN else dim for dim in layout)

    def fit(self, layout: PartialLayout, shape: Shape) -> PartialLayout:
        """Without the splits whose sizes do not divide: of several on one dim, the later ones."""
        key = (layout, shape)
        found = self._fits.get(key)
        if found is None:
            counts = [1] * len(shape)
            kept: list[int | None] = []
            for dim, size in zip(layout, self.mesh_shape, strict=True):
                if dim is not None and dim >= 0:
                    if dim >= len(shape) or shape[dim] % (counts[dim] * size):
                        dim = None
                    else:
                        counts[dim] *= size
                kept.append(dim)
            found = self._fits[key] = tuple(kept)
        return found

    def reduces(self, op: Op, operand: int, layout: PartialLayout) -> tuple[bool, ...]:
        """Per axis: the operation sums (or the like) over the dim that the axis splits."""
        if op.map is None:
            return (False,) * len(layout)
        dims = op.map.operands[operand]
        return tuple(
            dim is not None and dim >= 0 and bool(dims[dim]) and dims[dim][0] in op.map.reduced
            for dim in layout
        )

    def _move(self, op: Op, source: int, target: int, layout: PartialLayout) -> PartialLayout:
        """A slot is an operand's number, or -1 - n for result n."""
        key = (id(op), source, target, layout)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._work_out(op, source, target, layout)
        return found

    def _work_out(self, op: Op, source: int, target: int, layout: PartialLayout) -> PartialLayout:
        if op.map is None:
            return self.open
        of, into = _dims(op, source), _dims(op, target)
        moved = transfer(op.map.sizes, of, into, self.settle(layout), self.mesh_shape)
        inside = {factor for dim in of for factor in dim}
        covers = all(factor in inside for dim in into for factor in dim)
        found: list[int | None] = []
        for before, after in zip(layout, moved, strict=True):
            if after is not None:
                found.append(after)
            else:
                found.append(None if before is None and covers else OPEN)
        return tuple(found)


def _dims(op: Op, slot: int) -> Dims:
    assert op.map is not None
    return op.map.operands[slot] if slot >= 0 else op.map.results[-1 - slot]
