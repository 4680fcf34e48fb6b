"""The first half of the pipeline: trace, blocks, segments. Needs no devices."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cfp.blocks import Block, Blocks, SplitName, build_blocks
from cfp.errors import CfpError
from cfp.segments import DistinctSegment, Segment, Segments, build_segments
from cfp.trace import Graph, Role, source_line, trace

# below it a note is due: with a tenth of the work whole on each, 8 devices take 1.7 times as long
LITTLE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the step is made of. `trace_s` is JAX's own tracing, `seconds` everything."""

    graph: Graph
    grouping: Blocks
    segmentation: Segments
    sequence: bool  # whether sequence dims are candidates of their own
    trace_s: float
    seconds: float

    def __repr__(self) -> str:
        """Returns one line: the graph alone is megabytes of text."""
        mesh = "x".join(map(str, self.mesh_shape))
        return (
            f"<Analysis for a mesh of {mesh}: {len(self.graph.equations)} equations, "
            f"{len(self.blocks)} ParallelBlocks, {len(self.segments)} segments, "
            f"{len(self.distinct_segments)} distinct>"
        )

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.grouping.blocks

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Returns every occurrence, in running order."""
        return self.segmentation.segments

    @property
    def distinct_segments(self) -> tuple[DistinctSegment, ...]:
        return self.segmentation.kinds

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return self.grouping.mesh_shape

    def split_share(self, parts: int) -> float:
        """Returns the share of the step's FLOPs in blocks that can be split into `parts`."""
        flops = {True: 0.0, False: 0.0}
        for segment in self.segments:
            for block in (self.blocks[index] for index in segment.blocks):
                splits = any(candidate.allows(parts) for candidate in block.candidates)
                flops[splits] += block.flops * segment.times
        return flops[True] / (sum(flops.values()) or 1.0)

    @property
    def batch_divides(self) -> bool:
        """Returns whether every block can split the batch along all axes of the mesh at once. Then
        no block gains by splitting a sequence: it would divide the work alike, and attention needs
        nothing of other examples."""
        every = math.prod(self.mesh_shape)
        return all(
            any(c.split_name is SplitName.BATCH and c.allows(every) for c in block.candidates)
            for block in self.blocks
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns what the user should know of the mesh: an axis that can split little of the
        work."""
        found: list[str] = []
        for size in dict.fromkeys(size for size in self.mesh_shape if size > 1):
            share = self.split_share(size)
            if share >= LITTLE_SHARE:
                continue
            whole: dict[str, float] = {}  # a dim -> FLOPs of the blocks that have it
            for block in self.blocks:
                if not any(candidate.allows(size) for candidate in block.candidates):
                    for candidate in block.candidates:
                        name = f"{candidate.name} {candidate.extent}"
                        whole[name] = whole.get(name, 0.0) + block.flops
            dims = ", ".join(sorted(whole, key=lambda name: -whole[name])[:3])
            better = [n for n in range(2, 2 * size + 1) if self.split_share(n) >= LITTLE_SHARE]
            way = f" {_listed(better)} would divide them." if better else ""
            found.append(
                f"An axis of {size} devices can split {share:.0%} of the step's FLOPs; every "
                f"device computes the rest whole, whose sizes ({dims}) do not divide by {size}."
                f"{way}"
            )
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data with the keys that the contract names, for `json.dumps`."""
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
                    "times": segment.times,
                    "loop": segment.loop,
                }
                for segment in self.segments
            ],
            "distinct_segments": [
                {
                    "kind": kind.index,
                    "fingerprint": kind.fingerprint,
                    "occurrences": list(kind.occurrences),
                    "times": kind.times,
                    "strategies": list(kind.strategies),
                    "space": kind.space,
                }
                for kind in self.distinct_segments
            ],
            "opaque": [
                {"primitive": e.primitive, "role": e.role.value, "source": source_line(e)}
                for e in graph.opaque()
            ],
            "notes": list(self.notes),
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
    return Analysis(graph, blocks, segments, sequence, graph.trace_s, seconds)


def _listed(sizes: Sequence[int]) -> str:
    """Returns `2`, `2 or 4`, `2, 4 or 8`."""
    *first, last = map(str, sizes[-3:])
    return f"{', '.join(first)} or {last}" if first else last


def check_mesh_shape(mesh_shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a tuple of positive ints, or an error that says what to write."""
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
