"""From measurements of programs to the cost of a segment.

    cost = Σ over its programs of times per step * time

Where the segment follows itself, two in a row are measured too. If they take less or more than
twice one, beyond what the runs spread, the difference is what another one adds (the compiler may
merge the gradient sums of neighbours), and that counts. What resharding between them takes is no
part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cfp.layouts import Layouts
from cfp.profile.job import Shares
from cfp.profile.kinds import Kind
from cfp.profile.measurement import Measurement
from cfp.profile.memory import memory_use
from cfp.profile.profile import Cost


def cost_of(
    kind: Kind,
    layouts: Sequence[Layouts],
    measured: Sequence[Measurement],
    chained: Measurement | None,
    between_s: float | None,
) -> Cost:
    """`measured` are the kind's programs, `chained` two in a row with `between_s` of resharding."""
    times = [cut.times for cut in kind.cuts]
    alone_s = sum(n * m.time_s for n, m in zip(times, measured, strict=True))
    spread_s = math.hypot(*(n * m.spread_s for n, m in zip(times, measured, strict=True)))
    time_s = alone_s
    if chained is not None and chained.failed is None and between_s is not None:
        more_s = chained.time_s - between_s - alone_s
        noise_s = 2 * math.hypot(spread_s, chained.spread_s)
        if more_s > 0 and abs(more_s - alone_s) > noise_s:
            time_s = more_s
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
        time_s=time_s,
        alone_s=alone_s,
        at_least_s=sum(n * m.at_least_s for n, m in zip(times, measured, strict=True)),
        spread_s=spread_s,
        shares=_shares(times, measured, time_s / alone_s if alone_s > 0 else 1.0),
        memory=memory,
        added_bytes=_added(measured, chained),
        rough=any(found.cut for found in measured),
    )


def _added(measured: Sequence[Measurement], chained: Measurement | None) -> int | None:
    if chained is None or chained.memory is None or measured[0].memory is None:
        return None
    return chained.memory.total_bytes - measured[0].memory.total_bytes


def _shares(times: Sequence[int], measured: Sequence[Measurement], scale: float) -> Shares | None:
    compute = transfer = waiting = 0.0
    for n, found in zip(times, measured, strict=True):
        split = found.split()
        if split is None:
            return None
        compute += n * split.compute_s
        transfer += n * split.transfer_s
        waiting += n * split.waiting_s
    return Shares(compute * scale, transfer * scale, waiting * scale)
