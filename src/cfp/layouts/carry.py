"""Layouts carried through the maps of operations.

What comes of it is remembered as long as the operation lives, for all plans: they differ in a few
blocks, and equal layers share their operations.

While a plan is being worked out a layout may be OPEN along an axis: nothing asks for a split there
and nothing forbids one. An axis that does not split the source says nothing of the target beyond
that: WHOLE stays None, OPEN stays OPEN, and a split that is lost on the way becomes OPEN.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

from cfp.affine import Dims
from cfp.layouts.layout import Layout, Shape, transfer
from cfp.trace import Op

OPEN = -1  # no dim has this number
PartialLayout = tuple[int | None, ...]  # as Layout, with OPEN where undecided


@functools.cache
def _memory(mesh_shape: Shape) -> WeakKeyDictionary[Op, dict[Hashable, Any]]:
    return WeakKeyDictionary()


def splits(dim: int | None) -> bool:
    return dim is not None and dim >= 0


class Carry:
    """`to_result`, `to_operand`, `across` and `join` take and give partial layouts."""

    def __init__(self, mesh_shape: Shape) -> None:
        self.mesh_shape = mesh_shape
        self.open: PartialLayout = (OPEN,) * len(mesh_shape)
        self._known = _memory(mesh_shape)
        self._fits: dict[tuple[PartialLayout, Shape], PartialLayout] = {}

    def remembered(self, op: Op) -> dict[Hashable, Any]:
        """Returns what was worked out of an operation, under keys that begin with what it is."""
        found = self._known.get(op)
        if found is None:
            found = self._known[op] = {}
        return found

    def to_result(self, op: Op, operand: int, result: int, layout: PartialLayout) -> PartialLayout:
        return self._move(op, operand, -1 - result, layout)

    def to_operand(self, op: Op, result: int, operand: int, layout: PartialLayout) -> PartialLayout:
        return self._move(op, -1 - result, operand, layout)

    def across(self, op: Op, source: int, target: int, layout: PartialLayout) -> PartialLayout:
        return self._move(op, source, target, layout)

    def settle(self, layout: PartialLayout) -> Layout:
        return tuple(None if dim == OPEN else dim for dim in layout)

    def over(self, first: PartialLayout, second: PartialLayout) -> PartialLayout:
        """Returns the first layout, and the second along the axes that the first leaves open."""
        return tuple(b if a == OPEN else a for a, b in zip(first, second, strict=True))

    def fit(self, layout: PartialLayout, shape: Shape) -> PartialLayout:
        """Returns the layout without the splits whose sizes do not divide; where a dim has several,
        the later ones go."""
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
        """Returns for each axis whether the operation sums (or the like) over the dim that the axis
        splits."""
        if op.map is None:
            return (False,) * len(layout)
        dims = op.map.operands[operand]
        return tuple(
            dim is not None and dim >= 0 and bool(dims[dim]) and dims[dim][0] in op.map.reduced
            for dim in layout
        )

    def join(
        self,
        op: Op,
        result: int,
        asked: PartialLayout,
        reads: tuple[PartialLayout, ...],
        constant: tuple[bool, ...],
    ) -> tuple[PartialLayout, tuple[bool, ...]]:
        """Returns the layout of a result, which is the one asked for, else that of the operands
        that are no constants; OPEN where it is a partial sum that nothing asked for. Returns also,
        for each axis, whether it is one."""
        known = self.remembered(op)
        key = ("join", result, asked, reads, constant)
        if key in known:
            return known[key]  # type: ignore[no-any-return]
        given = [(i, layout) for i, layout in enumerate(reads) if not constant[i]]
        moved = [self.to_result(op, i, result, layout) for i, layout in given]
        sums = [self.reduces(op, i, layout) for i, layout in enumerate(reads)]
        found: list[int | None] = []
        partial: list[bool] = []
        for axis, dim in enumerate(asked):
            if dim == OPEN:
                options = [layout[axis] for layout in moved]
                all_whole = bool(given) and all(layout[axis] is None for _, layout in given)
                rest = None if all_whole or None in options else OPEN
                dim = next((d for d in options if splits(d)), rest)
            found.append(dim)
            partial.append(any(flags[axis] for flags in sums) and not splits(dim))
        layout = self.fit(tuple(found), op.out_shapes[result])
        left_open = tuple(OPEN if on else dim for on, dim in zip(partial, layout, strict=True))
        known[key] = answer = left_open, tuple(partial)
        return answer

    def _move(self, op: Op, source: int, target: int, layout: PartialLayout) -> PartialLayout:
        """Returns a layout carried from one slot to another; a slot is an operand's number, or -1 -
        n for result n."""
        known = self.remembered(op)
        key = ("move", source, target, layout)
        found: PartialLayout | None = known.get(key)
        if found is None:
            found = known[key] = self._work_out(op, source, target, layout)
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
