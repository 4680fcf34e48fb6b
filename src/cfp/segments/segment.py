"""What stage 3 returns: segments, where they occur, and the parts they are cut into."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from cfp.blocks import Blocks
from cfp.trace import Graph


class Phase(enum.Enum):
    """A part runs in one pass of the step.

    Schedule and epilogue are what the update shares: of the arguments alone (step counters),
    and of the gradients (a global norm).
    """

    SCHEDULE = "schedule"
    FORWARD = "forward"
    BACKWARD = "backward"
    EPILOGUE = "epilogue"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of the step: its equations in order, and the tensors that cross its edge.

    `segment` is None for what the update shares.
    """

    segment: int | None
    phase: Phase
    equations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def show(self, graph: Graph) -> str:
        owner = "shared" if self.segment is None else f"segment {self.segment}"
        lines = [f"{owner} {self.phase.value}: {len(self.equations)} equations"]
        lines += [f"  in  {graph.describe(value)}" for value in self.inputs]
        lines += [f"  out {graph.describe(value)}" for value in self.outputs]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Segment:
    """One occurrence of a kind: a run of blocks. It runs `times` times a step, more than once in a
    loop."""

    index: int
    kind: int
    blocks: tuple[int, ...]
    loop: int | None
    times: int


@dataclass(frozen=True, slots=True)
class DistinctSegment:
    """What is profiled once for all its occurrences; `representative` is the one to use."""

    index: int
    fingerprint: str
    text: str
    representative: int
    occurrences: tuple[int, ...]
    times: int  # how often all occurrences run in a step, together
    strategies: tuple[int, ...]  # per block

    @property
    def space(self) -> int:
        return math.prod(self.strategies)


@dataclass(frozen=True, slots=True)
class Segments:
    """The step as a sequence of segments and, in running order, the parts of all of them."""

    segments: tuple[Segment, ...]
    kinds: tuple[DistinctSegment, ...]
    parts: tuple[Part, ...]
    home: Mapping[int, tuple[int | None, Phase]]  # equation -> its part

    def part(self, segment: int | None, phase: Phase) -> Part | None:
        for part in self.parts:
            if part.segment == segment and part.phase is phase:
                return part
        return None

    def show(self, graph: Graph, blocks: Blocks) -> str:
        lines: list[str] = []
        for kind in self.kinds:
            sizes = " x ".join(map(str, kind.strategies))
            lines.append(
                f"kind {kind.index} {kind.fingerprint}: {kind.times} times, "
                f"{len(kind.strategies)} blocks, {sizes} = {kind.space} plans"
            )
        for segment in self.segments:
            times = f" x{segment.times}" if segment.times > 1 else ""
            where = ", ".join(map(str, segment.blocks))
            lines.append(f"segment {segment.index}: kind {segment.kind}, blocks {where}{times}")
        return "\n".join(lines)
