"""From measurements of programs to the cost of a segment.

    cost = Σ over its programs of times per step * time / iterations in the program

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cfp.layouts import Layouts
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.memory import MemoryUse, memory_use, one_of_two
from cfp.profile.measure.sent import Sent
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.runners.job import Shares


@dataclass(frozen=True, slots=True)
class Cost:
    """What one occurrence of a segment adds to a step, its loop's iterations all counted.

    Where the segment follows itself it is half of what two in a row take. `shares` tells
    the time apart, None where the profiler could not: then what is computing and what is
    communication is not known either. `rough` means given up early: `time_s` is of
    few runs, and it takes no less than `at_least_s`.
    """

    time_s: float
    at_least_s: float
    spread_s: float
    shares: Shares | None
    memory: MemoryUse
    rough: bool

    @property
    def compute_s(self) -> float | None:
        return None if self.shares is None else self.shares.compute_s

    @property
    def communication_s(self) -> float | None:
        """Returns the time in collectives, waiting for others included."""
        return None if self.shares is None else self.shares.transfer_s + self.shares.waiting_s


@dataclass(frozen=True, slots=True)
class SegmentProfile:
    """A distinct segment: the options that run with their costs, those that do not with why.
    `sent` is what options make the devices send, where the compiler told."""

    kind: Kind
    costs: Mapping[Option, Cost]
    failed: Mapping[Option, str]
    layouts: Mapping[Option, tuple[Layouts, ...]]
    finished: bool  # False: the budget ended before the choice was settled
    sent: Mapping[Option, tuple[Sent, ...]]

    @property
    def ways(self) -> int:
        """Returns how many ways to split its blocks ran, however the training state is split;
        those with split streams are not counted again."""
        return len({o.combo for o in self.costs if not self.kind.has_streams(o)})

    def ranked(self) -> list[Option]:
        """Returns the options, fastest first."""
        return sorted(self.costs, key=lambda option: self.costs[option].time_s)

    def show(self) -> str:
        """Returns a line for every option that ran, fastest first, with its time."""
        lines = [f"kind {self.kind.index}, {self.ways} of {self.kind.space} ways to split it"]
        for option in self.ranked():
            lines.append(f"  {self.costs[option].time_s * 1e6:.0f} us: {self.kind.show(option)}")
        return "\n".join(lines)


def cost_of(kind: Kind, layouts: Sequence[Layouts], measured: Sequence[Measurement]) -> Cost:
    """Returns the cost of an option from the measurements of its kind's programs."""
    times = [extract.times / extract.iterations for extract in kind.extracts]
    uses = []
    for extract, lie, found, known in zip(
        kind.extracts, layouts, measured, elsewhere(kind), strict=True
    ):
        assert found.memory is not None
        uses.append(memory_use(extract, lie, found.memory, known))
    memory = uses[0]
    for use in uses[1:]:
        memory = use.around(memory)
    return Cost(
        time_s=sum(n * m.time_s for n, m in zip(times, measured, strict=True)),
        at_least_s=sum(n * m.at_least_s for n, m in zip(times, measured, strict=True)),
        spread_s=math.hypot(*(n * m.spread_s for n, m in zip(times, measured, strict=True))),
        shares=_shares(times, measured),
        memory=memory,
        rough=any(found.stopped_early for found in measured),
    )


def elsewhere(kind: Kind) -> list[set[int]]:
    """Returns the arguments of each program that a program further out has too, and the slices that
    an iteration reads of the stacks outside."""
    found = []
    for i, extract in enumerate(kind.extracts):
        outer = {value for other in kind.extracts[i + 1 :] for value in other.inputs}
        found.append({n for n, value in enumerate(extract.inputs) if value in outer})
    for pairs in (kind.slices, *kind.further):
        found[0] |= {pair.inside for pair in pairs}
    return found


def cost_of_two(
    kind: Kind,
    layouts: Layouts,
    both: Measurement,
    *,
    between_s: float,
    fixed_s: float,
    alone: MemoryUse | None = None,
) -> Cost:
    """Returns what one of two in a row adds, from a measurement of the two in these layouts.
    `alone` is what one needs, if known."""
    assert kind.chained is not None
    assert both.memory is not None
    extra_s = between_s + fixed_s
    time_s = max(both.time_s - extra_s, 0.0) / 2
    shares = both.split()
    if shares is not None and both.time_s > 0:
        scale = time_s / both.time_s
        shares = shares.scaled(scale)
    return Cost(
        time_s=time_s,
        at_least_s=max(both.at_least_s - extra_s, 0.0) / 2,
        spread_s=both.spread_s / 2,
        shares=shares,
        memory=one_of_two(memory_use(kind.chained, layouts, both.memory), alone),
        rough=both.stopped_early,
    )


def fixed_part(pairs: Iterable[tuple[Measurement, Measurement, float]]) -> float:
    """Returns what a program takes once, from options measured alone and twice in a row; the third
    of each is what resharding between the two takes. Only what is certain, by the intervals: a
    difference of noisy times would be taken off every segment."""
    found = [
        2 * one.interval_s[0] - (two.interval_s[1] - between_s) for one, two, between_s in pairs
    ]
    return max(statistics.median(found), 0.0) if found else 0.0


def _shares(times: Sequence[float], measured: Sequence[Measurement]) -> Shares | None:
    compute = transfer = waiting = 0.0
    for n, found in zip(times, measured, strict=True):
        split = found.split()
        if split is None:
            return None
        compute += n * split.compute_s
        transfer += n * split.transfer_s
        waiting += n * split.waiting_s
    return Shares(compute, transfer, waiting)
