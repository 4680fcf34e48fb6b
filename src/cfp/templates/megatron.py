"""Megatron: products by weights are split by output, then by input, so that one sum serves two.

A weight's product whose input comes whole is split by its output features (every device makes some
of them); the next, whose input comes split in the dim it sums over, is split by its input features
and leaves partial sums, which one all-reduce completes. Lookups split the table's rows. What comes
split stays so through products of activations. Cheap products (a router), products of whole
activations and blocks of which no dim divides are replicated. On a mesh of several axes the last is
the tensor axis, unless `axis` names another, and the others split the batch.

With sequence parallelism the sums go on split by rows wherever they are a stream that another block
reads (`blocks.streams`): by the batch where no other axis splits it, else by the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cfp.analysis import Analysis
from cfp.blocks import Block, SplitName, Strategy
from cfp.blocks.operands import OPERANDS
from cfp.errors import CfpError
from cfp.layouts import AnyMesh
from cfp.layouts.carry import splits
from cfp.plan import Plan, build_plan
from cfp.plan.build import analyze_for
from cfp.templates.data_parallel import batch_strategies
from cfp.templates.walk import Decide, split_of, walk
from cfp.trace import Equation, Role

# what a product splits first, and what a lookup does, where neither follows from the data
ORDER = (SplitName.OUTPUT, SplitName.INPUT)
TABLE_ORDER = (SplitName.TABLE, SplitName.OUTPUT)


def megatron(
    step: Callable[..., Any],
    *args: Any,
    mesh: AnyMesh,
    axis: str | None = None,
    sequence_parallel: bool = False,
    pins: Mapping[str, Any] | None = None,
) -> Plan:
    """Returns the plan that is tensor parallel over one axis and data parallel over the others;
    with `sequence_parallel`, what lies between its blocks is split by rows."""
    analysis = analyze_for(step, args, mesh)
    names = mesh.axis_names
    if axis is not None and axis not in names:
        raise CfpError(f"`axis` is {axis!r}; the mesh has {', '.join(names)}.")
    tensor = names.index(axis) if axis is not None else len(names) - 1
    size = mesh.axis_sizes[tensor]
    chosen = tensor_candidates(analysis, size)
    others = [i for i in range(len(names)) if i != tensor]
    batch = batch_strategies(analysis, mesh, others, "megatron")
    strategies = [
        tuple(candidate if i == tensor else rest[i] for i in range(len(names)))
        for candidate, rest in zip(chosen, batch, strict=True)
    ]
    name = "megatron"
    if sequence_parallel:
        name, shape = "megatron_sp", mesh.axis_sizes
        pairs = zip(analysis.blocks, strategies, strict=True)
        strategies = [_split_stream(block, strategy, tensor, shape) for block, strategy in pairs]
    return build_plan(step, analysis, mesh, strategies, name=name, pins=pins)


def megatron_sp(step: Callable[..., Any], *args: Any, mesh: AnyMesh, **options: Any) -> Plan:
    """Returns `megatron` with sequence parallelism."""
    return megatron(step, *args, mesh=mesh, sequence_parallel=True, **options)


def _split_stream(
    block: Block, strategy: Strategy, tensor: int, mesh_shape: tuple[int, ...]
) -> Strategy:
    """Returns the strategy with a split stream along the tensor axis, where the block has rows to
    split."""
    found = block.with_streams(strategy, [tensor])
    return strategy if block.split_rows(found, mesh_shape) is None else found


def tensor_candidates(analysis: Analysis, size: int) -> list[int | None]:
    """Returns for each block the candidate that the tensor axis splits."""
    if size == 1:
        return [None] * len(analysis.blocks)
    chosen = walk(analysis, size, {}, _decide(size, weights(analysis)))
    if all(candidate is None for candidate in chosen):
        raise CfpError(
            f"megatron splits weights into {size} parts, and no block of this step has a dim that "
            "divides by that. Use a smaller tensor axis."
        )
    return chosen


def weights(analysis: Analysis) -> set[int]:
    """Returns the forward values made of parameters and constants alone."""
    graph = analysis.graph
    found = {*analysis.grouping.parameters, *graph.constants}
    for equation in graph.role(Role.FORWARD):
        if equation.inputs and found.issuperset(equation.inputs):
            found.update(equation.outputs)
    return found


def _decide(size: int, weights: Collection[int]) -> Decide:
    def decide(block: Block, seed: Equation, reads: Sequence[int | None]) -> int | None:
        options = [i for i, c in enumerate(block.candidates) if c.allows(size)]
        for data in OPERANDS[seed.primitive]:  # the activation, or the first of two
            if seed.inputs[data] in weights or not splits(reads[data]):
                continue
            for i in options:
                split = split_of(block, i, seed)
                if split is not None and split.operand_dims[data] == reads[data]:
                    return i
        looks_up = seed.primitive == "gather"
        if block.cheap and not looks_up:
            return None
        if not any(value in weights for value in seed.inputs):
            return None
        for name in TABLE_ORDER if looks_up else ORDER:
            for i in options:
                if block.candidates[i].split_name is name:
                    return i
        return None

    return decide
