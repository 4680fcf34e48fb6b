"""What was measured of every distinct segment, as evidence of the plan that was chosen."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cfp.analysis import Analysis
from cfp.blocks import REPLICATED, Block, Strategy
from cfp.plan.choice import describe
from cfp.plan.measured_kinds import (
    MOST_OPTIONS,
    MeasuredBlock,
    MeasuredKind,
    MeasuredOption,
    short_sent,
)
from cfp.profile import Option, Profile, SegmentProfile


def measured_kinds(
    analysis: Analysis, profile: Profile, chosen: Sequence[Option]
) -> tuple[MeasuredKind, ...]:
    """Returns all kinds of a step; `chosen` is the option of every segment of the plan."""
    picked: dict[int, set[Option]] = {found.kind.index: set() for found in profile.segments}
    for segment, option in zip(analysis.segments, chosen, strict=True):
        picked[segment.kind].add(option)
    return tuple(_kind(analysis, found, picked[found.kind.index]) for found in profile.segments)


def _kind(analysis: Analysis, found: SegmentProfile, chosen: Collection[Option]) -> MeasuredKind:
    kind, distinct = found.kind, analysis.distinct_segments[found.kind.index]
    ranked = found.ranked()
    asked = {*chosen, *_best_of_each(ranked)}  # those that one asks about
    listed = [o for i, o in enumerate(ranked) if i < MOST_OPTIONS - len(asked) or o in asked]
    blocks = [analysis.blocks[i] for i in analysis.segments[distinct.representative].blocks]
    return MeasuredKind(
        name=kind.name,
        segments=tuple(distinct.occurrences),
        times=kind.times,
        space=kind.space,
        ways=found.ways,
        finished=found.finished,
        blocks=tuple(
            _block(analysis, block, strategies)
            for block, strategies in zip(blocks, kind.choices, strict=True)
        ),
        options=tuple(_option(found, option, option in asked) for option in listed),
        left_out=len(ranked) - len(listed),
    )


def _best_of_each(ranked: Sequence[Option]) -> set[Option]:
    """Returns the fastest option of every strategy of every block, of every state and of every
    choice of what to keep."""
    best: dict[object, Option] = {}
    for option in ranked:
        best.setdefault(option.state, option)
        best.setdefault(option.keep, option)
        for place, choice in enumerate(option.combo):
            best.setdefault((place, choice), option)
    return set(best.values())


def _block(analysis: Analysis, block: Block, strategies: Sequence[Strategy]) -> MeasuredBlock:
    def words(strategy: Strategy) -> str:
        names = [REPLICATED if i is None else block.candidates[i].name for i in strategy]
        return "+".join(names)

    return MeasuredBlock(
        seeds=tuple(describe(analysis.graph, seed) for seed in block.seeds),
        candidates=tuple(candidate.name for candidate in block.candidates),
        extents=tuple(candidate.extent for candidate in block.candidates),
        ended_by=block.ended_by,
        strategies=tuple(map(words, strategies)),
        flops=block.flops,
    )


def _option(found: SegmentProfile, option: Option, asked: bool) -> MeasuredOption:
    cost = found.costs[option]
    sent = found.sent.get(option) if asked else None
    return MeasuredOption(
        splits=found.kind.show(option),
        combo=option.combo,
        state=option.state.value,
        time_s=cost.time_s,
        spread_s=cost.spread_s,
        compute_s=cost.compute_s,
        communication_s=cost.communication_s,
        memory_bytes=cost.memory.total_bytes,
        rough=cost.rough,
        sent=None if sent is None else short_sent(sent),
        keep=option.keep.value,
    )
