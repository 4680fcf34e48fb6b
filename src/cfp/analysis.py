"""The first half of the pipeline: trace, blocks, segments. Needs no devices."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cfp.blocks import Block, Blocks, build_blocks
from cfp.errors import CfpError
from cfp.segments import DistinctSegment, Segment, Segments, build_segments
from cfp.trace import Graph, Role, source_line, trace


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the step is made of. `trace_s` is JAX's own tracing, `seconds` everything."""

    graph: Graph
    grouping: Blocks
    cut: Segments
    trace_s: float
    seconds: float

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.grouping.blocks

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Every occurrence, in running order."""
        return self.cut.segments

    @property
    def distinct_segments(self) -> tuple[DistinctSegment, ...]:
        return self.cut.kinds

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return self.grouping.mesh_shape

    def to_json(self) -> dict[str, Any]:
        """Plain data with the keys the contract names, for `json.dumps`."""
        graph = self.graph
        roles = Counter(equation.role.value for equation in graph.equations)
        return {
            "equations": len(graph.equations),
            "roles": {role.value: roles[role.value] for role in Role},
            "mesh_shape": list(self.mesh_shape),
            "blocks": [self._block(block) for block in self.blocks],
            "segments": [
                {
                    "index": segment.index,
                    "kind": segment.kind,
                    "blocks": list(segment.blocks),
                    "trips": segment.trips,
                    "loop": segment.loop,
                }
                for segment in self.segments
            ],
            "distinct_segments": [
                {
                    "kind": kind.index,
                    "fingerprint": kind.fingerprint,
                    "occurrences": list(kind.occurrences),
                    "times": kind.trips,
                    "strategies": list(kind.strategies),
                    "space": kind.space,
                }
                for kind in self.distinct_segments
            ],
            "opaque": [
                {"primitive": e.primitive, "role": e.role.value, "source": source_line(e)}
                for e in graph.opaque()
            ],
            "trace_seconds": self.trace_s,
            "seconds": self.seconds,
        }

    def _block(self, block: Block) -> dict[str, Any]:
        graph = self.graph
        return {
            "index": block.index,
            "seeds": [
                {
                    "primitive": graph.equations[seed].primitive,
                    "operands": [
                        {"shape": list(graph.values[v].shape), "argument": graph.argument(v)}
                        for v in graph.equations[seed].inputs
                    ],
                    "source": source_line(graph.equations[seed]),
                }
                for seed in block.seeds
            ],
            "candidates": [
                {"name": c.name, "extent": c.extent, "splits": self._splits(block, i)}
                for i, c in enumerate(block.candidates)
            ],
            "strategies": len(block.strategies(self.mesh_shape)),
            "equations": len(block.members) + len(block.prologue),
            "backward_contractions": len(block.backward),
            "flops": block.flops,
            "cheap": block.cheap,
            "reads_blocks": list(block.inputs_from),
            "ends": list(block.ended_by),
            "loop": block.loop,
        }

    def _splits(self, block: Block, candidate: int) -> list[dict[str, Any]]:
        return [
            {"operand_dims": list(split.operand_dims), "result_dim": split.result_dim}
            for split in block.candidates[candidate].seeds.values()
        ]


def analyze(
    step: Callable[..., Any],
    *args: Any,
    mesh_shape: Sequence[int] = (1,),
    sequence: bool = False,
) -> Analysis:
    """Finds the ParallelBlocks and the distinct segments of a training step.

    `args` are arrays or `ShapeDtypeStruct`s in any pytrees; nothing runs. `sequence=True` makes
    sequence dims candidates of their own.
    """
    shape = check_mesh_shape(mesh_shape)
    start = time.perf_counter()
    graph = trace(step, *args)
    blocks = build_blocks(graph, shape, sequence=sequence)
    _check_divides(blocks)
    segments = build_segments(graph, blocks)
    seconds = time.perf_counter() - start
    return Analysis(graph, blocks, segments, graph.trace_s, seconds)


def check_mesh_shape(mesh_shape: Sequence[int]) -> tuple[int, ...]:
    """A tuple of positive ints, or an error that says what to write."""
    try:
        shape = tuple(int(size) for size in mesh_shape)
    except (TypeError, ValueError):
        shape = ()
    if not shape or any(size < 1 for size in shape):
        raise CfpError(
            f"`mesh_shape` is {mesh_shape!r}: give one positive size per axis, as (2, 4)."
        )
    return shape


def _check_divides(blocks: Blocks) -> None:
    wanted = [size for size in blocks.mesh_shape if size > 1]
    candidates = [c for block in blocks.blocks for c in block.candidates]
    if wanted and not any(c.allows(size) for c in candidates for size in wanted):
        sizes = sorted({candidate.extent for candidate in candidates})
        shape = "x".join(map(str, blocks.mesh_shape))
        raise CfpError(
            f"A mesh of {shape} divides no dim of this step (dims that could be split: "
            f"{', '.join(map(str, sizes[:8]))}). Use a mesh size that divides some of them."
        )
