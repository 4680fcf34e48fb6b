"""How many programs the stages ahead of profiling will measure, by kind, before they are known.

Options and full steps are most of the time. Options are a range (`Explorer.ahead`); reshardings
depend on which options turn out fast, and are small: a rough range does. Where memory counts, by
the fastest options measured so far, split streams and training state are measured of several
options, and near the limit so is what they keep: together that may be half of all programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from cfp.analysis import Analysis
from cfp.layouts.state import State
from cfp.profile.explore.explorer import default_limit
from cfp.profile.explore.factors import Factors
from cfp.profile.explore.keeps import NEAR, keeps_ahead
from cfp.profile.explore.scope import Scope
from cfp.profile.explore.states import fastest_peak_bytes, finalists_of
from cfp.profile.explore.streams import SOME
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.outlook import FULL_STEP, RESHARDING, Ahead
from cfp.profile.programs.kinds import Kind, Option

ALONE = 2  # options of a segment that are measured alone, besides two in a row
BEST_ALONE = 2  # more of them where memory may decide: the best plan's, and those of the next best
LEADING_RESHARDINGS = 2.0  # for every boundary, between the fastest options; many lie alike
ALL_RESHARDINGS = 3.0  # for every boundary, at the most: too many make the estimate too wide
SPLIT_FURTHER = len(State) - 1  # ways of training state besides following the blocks


class Stage(IntEnum):
    """The stages of profiling, in order."""

    OVERHEAD = 0
    FIRST = 1
    FIRST_RESHARDINGS = 2
    OPTIONS = 3
    LEADING_RESHARDINGS = 4
    STREAMS = 5
    STATES = 6
    KEEPS = 7
    RESHARDINGS = 8
    ALONE = 9


@dataclass(frozen=True, slots=True)
class Further:
    """What is measured of options besides their strategies: of several where memory counts
    (`tight`), and `keeps` levels of what they keep, by kind."""

    tight: bool
    keeps: tuple[Ahead, ...]


class Forecast:
    """Finds what is ahead from what was measured so far. `leads` says that somebody finds leading
    plans, without which no level is measured."""

    def __init__(self, analysis: Analysis, ledger: Ledger, scope: Scope, *, leads: bool) -> None:
        self._analysis = analysis
        self._ledger = ledger
        self._scope = scope
        self._leads = leads
        self._keeps: dict[bool, tuple[Ahead, ...]] = {}
        self._boundaries = len({crossing.boundary for crossing in ledger.crossings})

    def after(self, stage: Stage, options: Sequence[Ahead], full_steps: int) -> dict[str, Ahead]:
        """Returns what comes after what is being measured; `options` are those yet to be asked for,
        by kind of segment."""
        limit, lean = self._scope.memory_limit_bytes, self._scope.lean
        peak = 0.0 if limit is None else fastest_peak_bytes(self._analysis, self._ledger)
        tight = lean or (limit is not None and peak > limit)
        binds = limit is not None and peak > NEAR * limit
        further = Further(tight, self._levels(binds) if stage < Stage.KEEPS else ())
        kinds = self._ledger.kinds
        found = {FULL_STEP: Ahead(full_steps, full_steps)}
        for kind, left in zip(kinds, options, strict=True):
            found |= _programs(stage, kind, left, further, finalists_of(self._scope))
        return {**found, RESHARDING: _reshardings(stage, self._boundaries)}

    def _levels(self, binds: bool) -> tuple[Ahead, ...]:
        """Returns how many levels of each kind will be measured, by its first option: to find that
        takes tens of milliseconds a kind, so it is found once."""
        if not self._leads:
            return (Ahead(0, 0),) * len(self._ledger.kinds)
        if binds not in self._keeps:
            self._keeps[binds] = tuple(
                keeps_ahead(kind, Option((0,) * len(kind.strategies)), binds, self._scope.recompute)
                for kind in self._ledger.kinds
            )
        return self._keeps[binds]


def _programs(
    stage: Stage, kind: Kind, options: Ahead, further: Further, finalists: int
) -> dict[str, Ahead]:
    """Returns the programs of one kind of segment, by name."""
    count = Ahead(0, 0)
    if stage < Stage.FIRST:
        count = count.plus(Ahead(1, 1))
    if stage <= Stage.OPTIONS:
        count = count.plus(options)
    if stage < Stage.STREAMS and any(kind.streams):
        more = Ahead(SOME, SOME + SPLIT_FURTHER) if further.tight else Ahead(0, SOME)
        count = count.plus(more)
    if stage < Stage.STATES:
        several = min(finalists, kind.space)
        high = SPLIT_FURTHER * (several if further.tight else 2)  # else the fastest, and another
        low = several if further.tight else SPLIT_FURTHER  # of some, two ways lie alike
        count = count.plus(Ahead(low, high))
    if stage < Stage.KEEPS:
        count = count.plus(further.keeps[kind.index])
    name = f"segment {kind.index}"
    if kind.chained is None:
        return {name: count}
    alone = Ahead(0, 0)
    if stage < Stage.ALONE:  # where memory may decide, the best plan's, which may change
        alone = Ahead(ALONE, ALONE + BEST_ALONE if further.tight else ALONE)
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
