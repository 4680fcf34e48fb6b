"""Stage 3: ParallelBlock sequence -> distinct segments, each a runnable program."""

from cfp.segments.build import build_segments
from cfp.segments.segment import DistinctSegment, Part, Phase, Segment, Segments

__all__ = ["DistinctSegment", "Part", "Phase", "Segment", "Segments", "build_segments"]
