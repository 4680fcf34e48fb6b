"""Which candidate of every block splits the batch: what data parallel templates choose, and what
the outermost mesh axis splits where it is to split nothing else."""

from __future__ import annotations

from cfp.blocks.batch import find_batch
from cfp.blocks.block import Blocks
from cfp.blocks.words import SplitName
from cfp.errors import CfpError
from cfp.trace import Graph, Role


def follow_batch(graph: Graph, grouping: Blocks, parts: int, who: str) -> list[int | None]:
    """Returns the candidate of each block that splits the batch into `parts`, or None where a block
    has no such batch. Where none has, an error says why `who` cannot split it."""
    found = [
        next(
            (
                index
                for index, candidate in enumerate(block.candidates)
                if candidate.split_name is SplitName.BATCH and candidate.allows(parts)
            ),
            None,
        )
        for block in grouping.blocks
    ]
    if all(candidate is None for candidate in found):
        raise CfpError(_refusal(graph, grouping, parts, who))
    return found


def _refusal(graph: Graph, grouping: Blocks, parts: int, who: str) -> str:
    batch = find_batch(graph, grouping.parameters)
    data = ", ".join(
        f"`{path}` {list(graph.values[value].shape)}"
        for path, value in zip(graph.input_paths, graph.inputs, strict=True)
        if value in batch.arguments
    )
    rows = sorted(
        {
            c.extent
            for block in grouping.blocks
            for c in block.candidates
            if c.split_name is SplitName.BATCH
        }
    )
    if not data:
        trains = any(equation.role is Role.BACKWARD for equation in graph.equations)
        reason = (
            "it updates everything that it reads. Pass the batch as an argument of its own."
            if trains
            else "it computes no gradient, so its parameters are not told from its batch. Plan the "
            "whole training step, which returns the new parameters."
        )
        return f"{who} splits the batch, and this step has none: {reason}"
    if not rows:
        return (
            f"{who} splits the batch, and no block of this step has a batch dim that could be "
            f"followed from its data ({data}): use another template."
        )
    return (
        f"{who} splits the batch into {parts} parts, and that of this step does not divide: its "
        f"blocks work on {' or '.join(map(str, rows))} rows at a time ({data}). Use a mesh that "
        "divides them."
    )
