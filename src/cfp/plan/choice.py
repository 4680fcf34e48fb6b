"""The choices of a plan: of every segment, for every block, what each mesh axis splits; how the
training state lies, and what is kept for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cfp.analysis import Analysis
from cfp.blocks import Block, Strategy
from cfp.errors import CfpError
from cfp.layouts.state import State
from cfp.plan.tensor import another_step
from cfp.segments.keep import Keep
from cfp.trace import Graph, source_line


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """How one block is split. `splits` names a candidate per mesh axis, None where it is
    replicated; `seed` says which block it is."""

    seed: str
    splits: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class SegmentChoice:
    """`state` is how training state lies in a segment that lies as it was measured; None in a plan
    that was laid out as a whole, as templates are. `keep` is what it keeps for its backward
    pass."""

    fingerprint: str
    blocks: tuple[BlockChoice, ...]
    state: State | None = None
    keep: Keep = Keep.AS_WRITTEN


def alike(segments: Sequence[SegmentChoice]) -> list[list[int]]:
    """Returns the segments that are the same and are split alike."""
    groups: dict[object, list[int]] = {}
    for index, segment in enumerate(segments):
        splits = tuple(block.splits for block in segment.blocks)
        key = (segment.fingerprint, splits, segment.state, segment.keep)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def segments_text(indices: Iterable[int]) -> str:
    """Returns the indices as ranges: `1-24, 26`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def choices(
    analysis: Analysis,
    strategies: Sequence[Strategy],
    of_segments: Sequence[tuple[State | None, Keep]],
) -> tuple[SegmentChoice, ...]:
    """Returns what a strategy per block, and a state and a level of recomputation per segment say,
    in words that outlive this trace of the step."""
    return tuple(
        SegmentChoice(
            analysis.distinct_segments[segment.kind].fingerprint,
            tuple(
                BlockChoice(
                    describe(analysis.graph, analysis.blocks[block].seeds[0]),
                    _names(analysis.blocks[block], strategies[block]),
                )
                for block in segment.blocks
            ),
            *of_segments[segment.index],
        )
        for segment in analysis.segments
    )


def strategies_of(analysis: Analysis, chosen: Sequence[SegmentChoice]) -> list[Strategy]:
    """Returns the strategies again, for a step that must have the plan's segments."""
    found = [analysis.distinct_segments[s.kind].fingerprint for s in analysis.segments]
    wanted = [segment.fingerprint for segment in chosen]
    if found != wanted:
        raise another_step(_segments_differ(wanted, found))
    strategies: list[Strategy] = [()] * len(analysis.blocks)
    for segment, choice in zip(analysis.segments, chosen, strict=True):
        if len(segment.blocks) != len(choice.blocks):
            raise another_step(
                f"its segment {segment.index} has {len(choice.blocks)} blocks, the step's has "
                f"{len(segment.blocks)}"
            )
        for block, block_choice in zip(segment.blocks, choice.blocks, strict=True):
            strategies[block] = _strategy(analysis.blocks[block], block_choice)
    return strategies


def describe(graph: Graph, seed: int) -> str:
    """Returns a block's seed in words: what it contracts, and where in the user's code."""
    equation = graph.equations[seed]
    operands = []
    for value in equation.inputs:
        argument = graph.argument(value) or ""
        shape = ",".join(map(str, graph.values[value].shape))
        operands.append(f"{argument}[{shape}]")
    name = {"gather": "lookup", "dot_general": "product", "conv_general_dilated": "convolution"}
    kind = name.get(equation.primitive, equation.primitive)
    return f"{kind} {' x '.join(operands[:2])} at {source_line(equation)}"


def _names(block: Block, strategy: Strategy) -> tuple[str | None, ...]:
    return tuple(None if i is None else block.candidates[i].name for i in strategy)


def _strategy(block: Block, choice: BlockChoice) -> Strategy:
    index = {candidate.name: i for i, candidate in enumerate(block.candidates)}
    for name in choice.splits:
        if name is not None and name not in index:
            raise CfpError(
                f"The plan splits `{name}` of the block at {choice.seed}, which offers "
                f"{', '.join(index) or 'nothing'}."
            )
    return tuple(None if name is None else index[name] for name in choice.splits)


def _segments_differ(wanted: Sequence[str], found: Sequence[str]) -> str:
    if len(wanted) != len(found):
        return f"it has {len(wanted)} segments, the step has {len(found)}"
    at = next(i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b)
    return f"segment {at} is {wanted[at]} in the plan and {found[at]} in the step"
