"""The numbers that justify a plan: what was measured of distinct segments and of full steps, and
where planning spent its time."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from cfp.analysis import Analysis
from cfp.blocks import REPLICATED, Block, Strategy
from cfp.plan.choice import describe
from cfp.plan.evidence import Evidence, FailedProgram, Links, Spent
from cfp.plan.measured_kinds import (
    MOST_OPTIONS,
    MeasuredBlock,
    MeasuredKind,
    MeasuredOption,
    short_sent,
)
from cfp.planning.choose import Chosen
from cfp.planning.proposals import Proposals
from cfp.profile import Option, Profile, SegmentProfile
from cfp.profile.measure.campaign import Campaign
from cfp.segments.fill import SEED
from cfp.training.flops import model_flops
from cfp.training.peaks import peak_flops, product_dtype


class Stopwatch:
    """What each stage takes, from `start` on."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._spent: dict[str, float] = {}

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Counts what is done meanwhile as a stage's. One that runs again, or that ends with an
        error, counts with all that it took."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._spent[stage] = self._spent.get(stage, 0.0) + time.monotonic() - start

    def spent(self) -> tuple[Spent, ...]:
        """Returns the stages so far, and all else since the start."""
        rest_s = max(time.monotonic() - self._start - sum(self._spent.values()), 0.0)
        stages = (Spent(stage, seconds) for stage, seconds in self._spent.items())
        return (*stages, Spent("all else", rest_s))


def gather_evidence(
    proposals: Proposals, chosen: Chosen, campaign: Campaign, spent: tuple[Spent, ...]
) -> Evidence:
    """Returns the numbers that justify a plan."""
    graph = proposals.analysis.graph
    return Evidence(
        memory_limit_bytes=chosen.limit_bytes,
        slack_bytes=chosen.proposal.slack_bytes,
        seed=SEED,
        seconds=time.monotonic() - campaign.budget.start,
        programs=campaign.compiled + campaign.loaded,
        loaded=campaign.loaded,
        ran=campaign.running.ran,
        taken_over=campaign.running.taken_over,
        start_s=proposals.start_s,
        segments=chosen.proposal.segments,
        frontier=proposals.frontier(chosen.proposal.beyond_bytes),
        steps=chosen.steps,
        confirmed=chosen.confirmed,
        failed=tuple(
            FailedProgram(one.name, one.failed or "", one.key not in campaign.passing)
            for one in campaign.failures()
        ),
        links=None
        if campaign.network is None
        else Links.of(campaign.network, campaign.machine.stand_ins),
        kinds=measured_kinds(proposals.analysis, proposals.profile, chosen.proposal.options),
        spent=spent,
        missing=proposals.profile.missing,
        flops=model_flops(graph),
        peak_flops=peak_flops(campaign.machine.device_kind, product_dtype(graph)),
    )


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
