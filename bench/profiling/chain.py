"""The best plan of a profile, segments taken as a chain: enough to say what a missed option costs.

Crossings between neighbours count, both ways; those that skip segments (labels, masks) do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cfp.analysis import Analysis
from cfp.profile import Option, Profile

Allowed = Mapping[int, Sequence[Option]]  # kind -> its options


def best_chain(
    analysis: Analysis, profile: Profile, allowed: Allowed
) -> tuple[float, list[Option]]:
    """Returns the predicted seconds of the fastest plan made of allowed options, and its option per
    segment."""
    kinds = [segment.kind for segment in analysis.segments]
    best: dict[Option, tuple[float, list[Option]]] = {
        option: (_own(profile, analysis, 0, option), [option]) for option in allowed[kinds[0]]
    }
    for segment in range(1, len(kinds)):
        after: dict[Option, tuple[float, list[Option]]] = {}
        for option in allowed[kinds[segment]]:
            own = _own(profile, analysis, segment, option)
            after[option] = min(
                (
                    (
                        cost + own + _between(profile, segment - 1, segment, previous, option),
                        [*chosen, option],
                    )
                    for previous, (cost, chosen) in best.items()
                ),
                key=lambda found: found[0],
            )
        best = after
    return min(best.values(), key=lambda found: found[0])


def chain_cost(analysis: Analysis, profile: Profile, chosen: Sequence[Option]) -> float:
    """Returns the predicted seconds of one plan."""
    total = sum(_own(profile, analysis, i, option) for i, option in enumerate(chosen))
    return total + sum(
        _between(profile, i, i + 1, chosen[i], chosen[i + 1]) for i in range(len(chosen) - 1)
    )


def _own(profile: Profile, analysis: Analysis, segment: int, option: Option) -> float:
    kind = analysis.segments[segment].kind
    return profile.segments[kind].costs[option].time_s + _crossings(
        profile, segment, segment, option, option
    )


def _between(profile: Profile, a: int, b: int, left: Option, right: Option) -> float:
    return _crossings(profile, a, b, left, right) + _crossings(profile, b, a, right, left)


def _crossings(profile: Profile, a: int, b: int, source: Option, target: Option) -> float:
    total = 0.0
    for crossing in profile.crossings:
        if (crossing.source, crossing.target) == (a, b):
            seconds = profile.resharding_s(crossing.boundary, source, target)
            total += float("inf") if seconds is None else seconds * crossing.times
    return total
