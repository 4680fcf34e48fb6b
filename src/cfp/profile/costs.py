"""From measurements of programs to the cost of a segment.

    cost = Σ over its programs of times per step * time

A segment that follows itself is measured as two in a row, which is nearer to what it adds to a step
than one alone: the compiler may merge the gradient sums of neighbours, and one alone may find its
activations in the caches still.

    cost = (two in a row - resharding between them - fixed) / 2,   fixed = max(0, 2 * one - two)

where `fixed`, what a program takes once however many segments it holds, comes from options that
were measured alone too (`fixed_part`). Memory likewise (`one_of_two`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cfp.layouts import Layouts
from cfp.profile.job import Shares
from cfp.profile.kinds import Kind
from cfp.profile.measurement import Measurement
from cfp.profile.memory import MemoryUse, memory_use, one_of_two
from cfp.profile.profile import Cost


def cost_of(kind: Kind, layouts: Sequence[Layouts], measured: Sequence[Measurement]) -> Cost:
    """Of the kind's programs, each measured."""
    times = [cut.times for cut in kind.cuts]
    uses = []
    for cut, lie, found in zip(kind.cuts, layouts, measured, strict=True):
        assert found.memory is not None
        uses.append(memory_use(cut, lie, found.memory))
    memory = uses[0]
    if len(uses) > 1:  # an iteration's slices are part of the stacks outside
        memory = replace(memory, parameter_bytes=0)
    for use in uses[1:]:
        memory = memory.plus(use)
    return Cost(
        time_s=sum(n * m.time_s for n, m in zip(times, measured, strict=True)),
        at_least_s=sum(n * m.at_least_s for n, m in zip(times, measured, strict=True)),
        spread_s=math.hypot(*(n * m.spread_s for n, m in zip(times, measured, strict=True))),
        shares=_shares(times, measured),
        memory=memory,
        rough=any(found.cut for found in measured),
    )


def cost_of_two(
    kind: Kind,
    layouts: Layouts,
    both: Measurement,
    *,
    between_s: float,
    fixed_s: float,
    alone: MemoryUse | None = None,
) -> Cost:
    """Of two in a row, laid out so; what one of them adds. `alone` is what one needs, if known."""
    assert kind.chained is not None
    assert both.memory is not None
    extra_s = between_s + fixed_s
    time_s = max(both.time_s - extra_s, 0.0) / 2
    shares = both.split()
    if shares is not None and both.time_s > 0:
        scale = time_s / both.time_s
        shares = Shares(
            shares.compute_s * scale, shares.transfer_s * scale, shares.waiting_s * scale
        )
    return Cost(
        time_s=time_s,
        at_least_s=max(both.at_least_s - extra_s, 0.0) / 2,
        spread_s=both.spread_s / 2,
        shares=shares,
        memory=one_of_two(memory_use(kind.chained, layouts, both.memory), alone),
        rough=both.cut,
    )


def fixed_part(pairs: Iterable[tuple[Measurement, Measurement, float]]) -> float:
    """What a program takes once, from options measured alone and twice in a row; the third of each
    is what resharding between the two takes. Only what is certain, by the intervals: a difference
    of noisy times would be taken off every segment."""
    found = [
        2 * one.interval_s[0] - (two.interval_s[1] - between_s) for one, two, between_s in pairs
    ]
    return max(statistics.median(found), 0.0) if found else 0.0


def _shares(times: Sequence[int], measured: Sequence[Measurement]) -> Shares | None:
    compute = transfer = waiting = 0.0
    for n, found in zip(times, measured, strict=True):
        split = found.split()
        if split is None:
            return None
        compute += n * split.compute_s
        transfer += n * split.transfer_s
        waiting += n * split.waiting_s
    return Shares(compute, transfer, waiting)
