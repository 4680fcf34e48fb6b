"""How many programs the stages ahead of profiling will measure, by kind, before they are known.

Options and full steps are most of the time. Options are a range (`Explorer.ahead`); reshardings
depend on which options turn out fast, and are small: a rough range does. Where memory may decide,
by the fastest options measured so far, some options follow that need less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

from cfp.analysis import Analysis
from cfp.layouts.state import State
from cfp.profile.explore.explorer import default_limit
from cfp.profile.explore.factors import Factors
from cfp.profile.explore.keeps import NEAR, may_keep_more
from cfp.profile.explore.scope import Recompute, Scope
from cfp.profile.explore.states import fastest_peak_bytes, finalists_of
from cfp.profile.explore.streams import SOME
from cfp.profile.measure.budget import FullStep
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.progress import FULL_STEP, RESHARDING, Ahead
from cfp.profile.programs.kinds import Kind

ALONE = 2  # options of a segment that are measured alone, besides two in a row
BEST_ALONE = 2  # more of them under a limit: the best plan's, and where memory may decide those of
# the next best
# options of a segment that may lead where memory decides, as seen of GPT and LLaMA
NEEDING_LESS = Ahead(1, 6)
LEADING_RESHARDINGS = 2.0  # for every boundary, between the fastest options; many lie alike
ALL_RESHARDINGS = 3.0  # for every boundary, at the most: too many make the estimate too wide
SPLIT_FURTHER = len(State) - 1  # ways of training state besides following the blocks


class Stage(IntEnum):
    """The stages of profiling, in order."""

    OVERHEAD = 0
    FIRST = 1
    FIRST_RESHARDINGS = 2
    FITTING = 3
    OPTIONS = 4
    LEADING_RESHARDINGS = 5
    STREAMS = 6
    STATES = 7
    EXPECTED = 8
    RESHARDINGS = 9
    ALONE = 10


class Forecast:
    """Finds what is ahead from what was measured so far. `leads` says that somebody finds leading
    plans: then only what may lead is measured where memory decides, else all that may need less."""

    def __init__(self, analysis: Analysis, ledger: Ledger, scope: Scope, *, leads: bool) -> None:
        self._analysis = analysis
        self._ledger = ledger
        self._scope = scope
        self._leads = leads
        self._boundaries = len({crossing.boundary for crossing in ledger.interfaces.crossings})

    def after(self, stage: Stage, options: Sequence[Ahead], full_steps: int) -> dict[str, Ahead]:
        """Returns what comes after what is being measured; `options` are those yet to be asked for,
        by kind of segment."""
        limit, lean = self._scope.memory_limit_bytes, self._scope.lean
        peak = 0.0 if limit is None else fastest_peak_bytes(self._analysis, self._ledger)
        thorough = lean or (limit is not None and peak > limit and not self._leads)
        binds = self._leads and limit is not None and peak > NEAR * limit
        found = {FULL_STEP: Ahead(full_steps, full_steps)}
        for kind, left in zip(self._ledger.kinds, options, strict=True):
            finalists = finalists_of(self._scope) if thorough else None
            count = left if stage <= Stage.OPTIONS else Ahead(0, 0)
            if stage <= Stage.EXPECTED:  # a few at a time: while some are measured, more may follow
                expected = self._expected(kind, binds)
                low = expected.low if stage < Stage.EXPECTED else 0.0
                count = count.plus(Ahead(low, expected.high))
            found |= _programs(stage, kind, count, finalists, self._leads and limit is not None)
        return {**found, RESHARDING: _reshardings(stage, self._boundaries)}

    def full_step(self) -> FullStep:
        """Returns what a full step will take, as far as the fastest options so far tell."""
        ledger = self._ledger
        step_s = once_s = each_s = 0.0
        for kind in ledger.kinds:
            compile_s = _compile_s(ledger, kind)
            step_s += ledger.step_part_s(kind, ledger.fastest(kind))
            once_s += compile_s
            each_s += len(kind.places) * compile_s
        # XLA compiles a GPU's kernels once, however many layers have them, and all else for each
        # layer: the truth is between the two, and their geometric mean misses it by least
        shared = ledger.campaign.machine.platform == "gpu"
        return FullStep(math.sqrt(once_s * each_s) if shared else each_s, step_s)

    def _expected(self, kind: Kind, binds: bool) -> Ahead:
        """Returns how many options will be measured that need less, or keep more."""
        more = Ahead(0, 0)
        if (
            self._leads
            and may_keep_more(kind)
            and self._scope.recompute is not Recompute.AS_WRITTEN
        ):
            more = Ahead(1, 2)
        return more.plus(NEEDING_LESS) if binds else more


def _compile_s(ledger: Ledger, kind: Kind) -> float:
    """Returns what it takes to compile one occurrence of a segment in a step, as far as its first
    option tells."""
    known, first = ledger.campaign.known, kind.first
    alone = ledger.alone[kind.index].get(first)
    if alone is not None and alone.key in known:
        return known[alone.key].compile_s
    in_a_row = 1 if kind.chained is None else 2
    return sum(known[one.key].compile_s for one in ledger.ask(kind, first)) / in_a_row


def _programs(
    stage: Stage, kind: Kind, count: Ahead, finalists: int | None, limited: bool
) -> dict[str, Ahead]:
    """Returns the programs of one kind of segment, by name: `count` options, and what is measured
    besides. Of so many `finalists`, all that may need less memory is. Where memory is `limited`,
    the options of the best plan are measured alone."""
    if stage < Stage.FIRST:
        count = count.plus(Ahead(1, 1))
    if stage < Stage.STREAMS and any(kind.streams):
        count = count.plus(
            Ahead(0, SOME) if finalists is None else Ahead(SOME, SOME + SPLIT_FURTHER)
        )
    if stage < Stage.STATES:
        several = 2 if finalists is None else min(finalists, kind.space)  # the fastest and another
        low = SPLIT_FURTHER if finalists is None else several  # of some, two ways lie alike
        count = count.plus(Ahead(low, SPLIT_FURTHER * several))
    name = f"segment {kind.index}"
    if kind.chained is None:
        return {name: count}
    alone = Ahead(0, 0)
    if stage < Stage.ALONE:
        alone = Ahead(ALONE, ALONE + BEST_ALONE if limited else ALONE)
    return {f"chained {name}": count, name: alone}


def _reshardings(stage: Stage, boundaries: int) -> Ahead:
    found = Ahead(0, 0)
    if stage < Stage.LEADING_RESHARDINGS:
        found = found.plus(Ahead(0, LEADING_RESHARDINGS * boundaries))
    if stage < Stage.RESHARDINGS:
        found = found.plus(Ahead(0, ALL_RESHARDINGS * boundaries))
    return found


def options_ahead(kinds: Sequence[Kind], exhaustive: bool, sample: int | None) -> list[Ahead]:
    """Returns how many options of each kind will be asked for, before the first is."""
    found = []
    for kind in kinds:
        if exhaustive:
            count = kind.space if sample is None else min(kind.space, sample)
            found.append(Ahead(count - 1, count - 1))
            continue
        limit = default_limit(Factors(kind.strategies).sizes)
        high = min(kind.space, limit) - 1
        found.append(Ahead(high if kind.space <= limit else high / 2, high))
    return found
