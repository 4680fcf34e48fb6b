"""Stage 2: Graph -> ParallelBlocks and their candidate strategies."""

from cfp.blocks.block import Block, Blocks, Candidate, Kind, SeedSplit, Strategy
from cfp.blocks.build import build_blocks

__all__ = ["Block", "Blocks", "Candidate", "Kind", "SeedSplit", "Strategy", "build_blocks"]
