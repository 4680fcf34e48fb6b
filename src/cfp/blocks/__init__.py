"""Stage 2 turns a `Graph` into ParallelBlocks and their candidate strategies."""

from cfp.blocks.block import Block, Blocks, Candidate, SeedSplit, Strategy
from cfp.blocks.build import build_blocks
from cfp.blocks.words import MEANING, REPLICATED, SplitName, legend

__all__ = [
    "MEANING",
    "REPLICATED",
    "Block",
    "Blocks",
    "Candidate",
    "SeedSplit",
    "SplitName",
    "Strategy",
    "build_blocks",
    "legend",
]
