"""How many programs the stages ahead of profiling will measure, by kind, before they are known.

Options and full steps are most of the time. Options are a range (`Explorer.ahead`); reshardings
depend on which options turn out fast, and are small: a rough range does.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from cfp.profile.explore.explorer import default_limit
from cfp.profile.explore.factors import Factors
from cfp.profile.measure.outlook import FULL_STEP, RESHARDING, Ahead
from cfp.profile.programs.kinds import Kind

ALONE = 2  # options of a segment that are measured alone, besides two in a row
LEADING_RESHARDINGS = 2.0  # for every boundary, between the fastest options; many lie alike
ALL_RESHARDINGS = 3.0  # for every boundary, at the most: too many make the estimate too wide


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


def programs_after(
    stage: Stage,
    kinds: Sequence[Kind],
    boundaries: int,
    options: Sequence[Ahead],
    full_steps: int,
) -> dict[str, Ahead]:
    """Returns what comes after what is being measured; `options` are those yet to be asked for, by
    kind of segment."""
    found = {FULL_STEP: Ahead(full_steps, full_steps)}
    for kind, left in zip(kinds, options, strict=True):
        name = f"segment {kind.index}"
        count = Ahead(0, 0)
        if stage < Stage.FIRST:
            count = count.plus(Ahead(1, 1))
        if stage <= Stage.OPTIONS:
            count = count.plus(left)
        if stage < Stage.STREAMS and any(kind.streams):
            count = count.plus(Ahead(0, 1))  # of the fastest option, if that splits one
        if stage < Stage.STATES:
            count = count.plus(Ahead(2, 4))  # for the fastest option, and for another
        if kind.chained is not None:
            found[f"chained {name}"] = count
            alone = ALONE if stage < Stage.ALONE else 0
            count = Ahead(alone, alone)
        found[name] = count
    reshardings = Ahead(0, 0)
    if stage < Stage.LEADING_RESHARDINGS:
        reshardings = reshardings.plus(Ahead(0, LEADING_RESHARDINGS * boundaries))
    if stage < Stage.RESHARDINGS:
        reshardings = reshardings.plus(Ahead(0, ALL_RESHARDINGS * boundaries))
    return {**found, RESHARDING: reshardings}


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
