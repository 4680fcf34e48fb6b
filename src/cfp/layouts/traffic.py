"""What devices send and compute when the tensors of a program lie so: counted, not measured.

Bytes are those one device sends along each mesh axis, by the ring algorithms: with n devices on the
axis and B bytes on each, a gather into B sends (n-1)/n B, a sum of B twice that, an exchange of the
split dim (n-1)/n B. Each of them is one collective of the axis, small ones too: to begin it takes
time of its own, on fast networks most of it. Compilers do better and worse than this; it says which
programs are worth measuring, never what they take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cfp.blocks.backward import CONTRACTING
from cfp.blocks.contraction import flops
from cfp.layouts.carry import Carry
from cfp.layouts.layout import Layout, Layouts, Shape, halfway
from cfp.trace import Equation, Graph


@dataclass
class Traffic:
    """What one device does: the bytes it sends along each axis, in how many collectives, the FLOPs
    of its products, and the bytes it writes."""

    mesh_shape: Shape
    sent_bytes: list[float] = field(init=False)
    collectives: list[int] = field(init=False)
    flops: float = 0.0
    written_bytes: float = 0.0

    def __post_init__(self) -> None:
        self.sent_bytes = [0.0] * len(self.mesh_shape)
        self.collectives = [0] * len(self.mesh_shape)

    def send(self, axes: Sequence[int], local_bytes: float) -> None:
        """Counts a gather into `local_bytes`, or half of their sum: over the last axis all of them,
        over the one before the parts that this leaves to do."""
        for axis in reversed(axes):
            size = self.mesh_shape[axis]
            self.sent_bytes[axis] += (size - 1) / size * local_bytes
            self.collectives[axis] += size > 1
            local_bytes /= size


def count_traffic(graph: Graph, layouts: Layouts, mesh_shape: Shape) -> Traffic:
    return _Count(graph, layouts, mesh_shape).run()


class _Count:
    def __init__(self, graph: Graph, layouts: Layouts, mesh_shape: Shape) -> None:
        self.graph = graph
        self.layouts = layouts
        self.carry = Carry(mesh_shape)
        self.found = Traffic(mesh_shape)
        self._moved: set[tuple[int, Layout]] = set()
        self._whole: Layout = (None,) * len(mesh_shape)

    def run(self) -> Traffic:
        for equation in self.graph.equations:
            reads = [self._read(equation, i) for i in range(len(equation.inputs))]
            self._compute(equation, reads)
            self._sum(equation, reads)
        for value, layout in zip(self.graph.outputs, self.layouts.outputs, strict=True):
            self._move(value, layout)
        return self.found

    def _lies(self, value: int) -> Layout:
        return self.layouts.known.get(value, self._whole)

    def _read(self, equation: Equation, operand: int) -> Layout:
        value = equation.inputs[operand]
        layout = self.layouts.uses.get((equation.index, operand), self._lies(value))
        self._move(value, layout)
        return layout

    def _move(self, value: int, target: Layout) -> None:
        """Counts a move once, however many equations read the tensor so."""
        source = self._lies(value)
        if source == target or (value, target) in self._moved:
            return
        self._moved.add((value, target))
        source = halfway(source, target) or source
        changes = list(enumerate(zip(source, target, strict=True)))
        gathered = [i for i, (before, after) in changes if before is not None and after is None]
        held = tuple(None if i in gathered else before for i, (before, _) in changes)
        self.found.send(gathered, self._bytes(value, held))
        for axis, (before, after) in changes:
            if before is not None and after is not None and before != after:
                self.found.send([axis], self._bytes(value, held))

    def _sum(self, equation: Equation, reads: list[Layout]) -> None:
        """Counts partial sums over the dims that the operands are split in."""
        flags = [self.carry.reduces(equation.op, i, read) for i, read in enumerate(reads)]
        summed = [axis for axis in range(len(self._whole)) if any(split[axis] for split in flags)]
        for value in equation.outputs:
            layout = self.layouts.sums.get(value, self._lies(value))
            self.found.send(summed, 2 * self._bytes(value, layout))

    def _compute(self, equation: Equation, reads: list[Layout]) -> None:
        lies = [self._lies(value) for value in equation.outputs]
        shared = [
            size
            for axis, size in enumerate(self.found.mesh_shape)
            if any(layout[axis] is not None for layout in (*reads, *lies))
        ]
        if equation.primitive in CONTRACTING:
            self.found.flops += flops(equation.op) / math.prod(shared)
        for value, layout in zip(equation.outputs, lies, strict=True):
            self.found.written_bytes += self._bytes(value, layout)

    def _bytes(self, value: int, layout: Layout) -> float:
        split = (n for dim, n in zip(layout, self.found.mesh_shape, strict=True) if dim is not None)
        return self.graph.values[value].size_bytes / math.prod(split)
