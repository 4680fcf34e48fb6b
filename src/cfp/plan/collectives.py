"""The collectives of a compiled step, told in the user's terms.

The compiler names each after the operation that needed it, and every equation runs under a name of
its own (`trace.evaluate`), so that a collective leads back to an equation: to its block, its pass
and the user's source line. The compiler merges collectives of one kind; each part keeps its own
origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jax

from cfp.analysis import Analysis
from cfp.layouts import AnyMesh
from cfp.links.collectives import MeshCollective, Piece, mesh_collectives
from cfp.trace import Equation, source_line
from cfp.trace.evaluate import equations_of
from cfp.trace.paths import leaf_paths


@dataclass(frozen=True, slots=True)
class Origin:
    """One tensor that a collective moves. `segment` and `block` are None where it has none."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    role: str  # forward, backward, update; or `unknown`
    primitive: str
    segment: int | None
    block: int | None
    source: str

    def show(self) -> str:
        where = "" if self.segment is None else f" segment {self.segment}"
        where += "" if self.block is None else f" block {self.block}"
        shape = ",".join(map(str, self.shape))
        return f"{self.dtype}[{shape}] {self.role}{where} {self.primitive} at {self.source}"


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the compiled step. `bytes` are what one device holds of the tensors moved,
    each time; `times` per step.

    `axes` are the mesh axes it spans, None where it spans part of one. A loop whose iterations the
    compiler does not know counts once.
    """

    kind: str
    bytes: int
    axes: tuple[str, ...] | None
    times: int
    origins: tuple[Origin, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Returns the blocks it comes from; it is empty where the collective serves what is in none
        (norms, the update)."""
        return tuple(sorted({o.block for o in self.origins if o.block is not None}))

    @property
    def sources(self) -> tuple[str, ...]:
        """Returns the user's source lines that it comes from, as `file.py:12 (function)`."""
        return tuple(dict.fromkeys(origin.source for origin in self.origins))

    def show(self) -> str:
        axes = "part of the mesh" if self.axes is None else "+".join(self.axes)
        times = f" x{self.times}" if self.times > 1 else ""
        head = f"{self.kind} over {axes}{times}, {self.bytes} bytes"
        return "\n".join([head, *(f"  {origin.show()}" for origin in self.origins)])


def find_collectives(text: str, analysis: Analysis, mesh: AnyMesh) -> tuple[Collective, ...]:
    """Returns the collectives in the compiled program's text, in the order they run."""
    return name_collectives(mesh_collectives(text, tuple(mesh.axis_sizes)), analysis, mesh)


def name_collectives(
    found: Iterable[MeshCollective], analysis: Analysis, mesh: AnyMesh
) -> tuple[Collective, ...]:
    """Returns the collectives of a compiled step in the user's terms."""
    origins = _Origins(analysis)
    return tuple(
        Collective(
            kind=one.kind,
            bytes=one.bytes,
            axes=None if one.axes is None else tuple(mesh.axis_names[axis] for axis in one.axes),
            times=one.times,
            origins=tuple(origins.of(piece) for piece in one.pieces),
        )
        for one in found
    )


class _Origins:
    def __init__(self, analysis: Analysis) -> None:
        self.graph = analysis.graph
        self.blocks = analysis.grouping
        self.segmentation = analysis.segmentation
        count = len(self.graph.in_tree.children())
        args = jax.tree.unflatten(self.graph.in_tree, self.graph.inputs)
        names = [f"args[{number}]" for number in range(count)]  # as `jit_bound` takes them
        self.arguments = dict(zip(leaf_paths(names, args), self.graph.inputs, strict=True))

    def of(self, piece: Piece) -> Origin:
        equation = next(self._equations(piece.op_name), None) or self._reader(piece.op_name)
        if equation is None:
            return Origin(
                piece.bytes, piece.shape, piece.dtype, "unknown", "", None, None, "unknown"
            )
        forward = self.blocks.matched.get(equation.index, equation.index)
        home = self.segmentation.home.get(equation.index)
        return Origin(
            bytes=piece.bytes,
            shape=piece.shape,
            dtype=piece.dtype,
            role=equation.role.value,
            primitive=equation.primitive,
            segment=None if home is None else home[0],
            block=self.blocks.home.get(forward),
            source=source_line(equation),
        )

    def _reader(self, op_name: str) -> Equation | None:
        """Returns the first equation to read the argument that the compiler names."""
        value = self.arguments.get(op_name.replace("\\", ""))
        readers = () if value is None else self.graph.readers[value]
        return self.graph.equations[readers[0]] if readers else None

    def _equations(self, op_name: str) -> Iterator[Equation]:
        count = len(self.graph.equations)
        return (self.graph.equations[i] for i in equations_of(op_name) if i < count)
