"""Stage 3 turns the sequence of blocks into distinct segments, each of which is a runnable
program."""

from cfp.segments.build import build_segments
from cfp.segments.segment import DistinctSegment, Part, Phase, Segment, Segments

__all__ = ["DistinctSegment", "Part", "Phase", "Segment", "Segments", "build_segments"]
