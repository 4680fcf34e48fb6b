"""The largest scratch of all nodes, as a cap.

Under a cap scratch does not count, only what is kept (`curve`); the answer is the best over all
caps. Worth trying as a cap is each scratch that an option needs, from the largest of the nodes'
least ones on. Where these are many they are put into groups: a group has the cap of its largest,
which loses the width of the group. Fewer groups leave more work, so finer buckets, to each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cfp.search.buckets import Rounding
from cfp.search.curve import Curve, fastest_of, trace
from cfp.search.hull import hull
from cfp.search.part import Part
from cfp.search.problem import Array, Numbers
from cfp.search.prune import prune
from cfp.search.steps import build

MOST = 16
MOST_COARSE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What is known of the plans whose scratch is `low_bytes` or more, up to the cap."""

    curve: Curve
    low_bytes: int

    def least_bytes(self, times_s: Array) -> Array:
        """A plan that is faster needs no less than this."""
        return self.curve.least_bytes(times_s) + self.low_bytes


def levels(part: Part, order: Sequence[int], work: float) -> Iterator[Level]:
    """The curves of all plans there are. Caps go down: if the plans under one need less than the
    cap, what lies between changes nothing."""
    values = scratch_values(part)
    caps = _caps(part, order, values, work)
    while caps:
        share = work / len(caps)
        work -= share
        some = prune(under(part, caps.pop()), scratch=False)
        curve = None if some.empty else trace(some, order, share)
        if curve is None:
            return
        used = max(
            int(node.scratch_bytes[options].max())
            for node, options in zip(part.whole.nodes, curve.choices.T, strict=True)
        )
        caps = [cap for cap in caps if cap < used]
        yield Level(curve, _above(values, caps))


def scratch_values(part: Part) -> Numbers:
    """All that the largest scratch of a plan can be."""
    distinct = {id(node): node.scratch_bytes for node in part.problem.nodes}
    if not distinct:
        return np.zeros(1, dtype=np.int64)
    values: Numbers = np.unique(np.concatenate(list(distinct.values())))
    least = max(int(sizes.min()) for sizes in distinct.values())
    return values[np.searchsorted(values, least) :]


def under(part: Part, cap: int) -> Part:
    """Only what needs so much scratch at most."""
    keep = {id(n): np.flatnonzero(n.scratch_bytes <= cap) for n in part.problem.nodes}
    return part.take([keep[id(node)] for node in part.problem.nodes])


def _above(values: Numbers, caps: Sequence[int]) -> int:
    """The least scratch over the caps that are still to come."""
    return int(values[np.searchsorted(values, caps[-1], side="right")] if caps else values[0])


def _caps(part: Part, order: Sequence[int], values: Numbers, work: float) -> list[int]:
    """In as many groups as lose least: by the width of a group, and by rounding what is kept or, if
    that is worse, by knowing corners alone."""
    steps = build(part.problem, order)
    fastest = fastest_of(part.problem, steps)
    if len(values) == 1 or fastest is None:
        return [int(values[-1])]
    rounding = Rounding(part.problem, steps, fastest=fastest)
    gap = hull(part.problem, steps, work / MOST_COARSE / 2).gap_bytes
    best = math.inf, [int(values[-1])]
    for count in range(1, min(MOST, len(values)) + 1):
        width, caps = _grouped(values, count)
        unit = rounding.unit(work / len(caps))
        error = math.inf if unit is None else rounding.error_bytes(unit)
        if count <= MOST_COARSE:
            error = min(error, gap)
        best = min(best, (width + error, caps))
    return best[1]


def _grouped(values: Numbers, count: int) -> tuple[int, list[int]]:
    """The least width for which so many groups suffice, and their largest values."""

    def groups(width: int) -> list[int]:
        found = [int(values[-1])]
        while (rest := int(np.searchsorted(values, found[-1] - width))) and len(found) <= count:
            found.append(int(values[rest - 1]))
        return found

    low, high = 0, int(values[-1] - values[0])
    while low < high:
        middle = (low + high) // 2
        if len(groups(middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return low, groups(low)[::-1]
