"""What profiling returns: the measured cost of every option of every distinct segment, and of every
resharding between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cfp.layouts import Layouts
from cfp.profile.boundary import Boundary, Crossing
from cfp.profile.job import Shares
from cfp.profile.kinds import Kind, Option
from cfp.profile.machine import Machine
from cfp.profile.memory import MemoryUse
from cfp.profile.requests import Resharding


@dataclass(frozen=True, slots=True)
class Cost:
    """What one occurrence of a segment adds to a step, its loop's iterations all counted.

    Where the segment follows itself it is half of what two in a row take (`costs`). `shares` tells
    the time apart, None where the profiler could not. `rough` means given up early: `time_s` is of
    few runs, and it takes no less than `at_least_s`.
    """

    time_s: float
    at_least_s: float
    spread_s: float
    shares: Shares | None
    memory: MemoryUse
    rough: bool

    @property
    def compute_s(self) -> float:
        return self.time_s if self.shares is None else self.shares.compute_s

    @property
    def communication_s(self) -> float:
        """In collectives, waiting for others included."""
        return 0.0 if self.shares is None else self.shares.transfer_s + self.shares.waiting_s


@dataclass(frozen=True, slots=True)
class SegmentProfile:
    """A distinct segment: the options that run with their costs, those that do not with why."""

    kind: Kind
    costs: Mapping[Option, Cost]
    failed: Mapping[Option, str]
    layouts: Mapping[Option, tuple[Layouts, ...]]
    finished: bool  # False: the budget ended before the choice was settled

    @property
    def ways(self) -> int:
        """Ways to split its blocks that ran, however the training state lies."""
        return len({option.combo for option in self.costs})

    def ranked(self) -> list[Option]:
        """Fastest first."""
        return sorted(self.costs, key=lambda option: self.costs[option].time_s)


@dataclass(frozen=True, slots=True)
class Profile:
    """`resharding_s` is None for a resharding that the compiler refused or the budget left out.

    `compiled` and `loaded` count programs; `missing` says what the budget left out.
    """

    machine: Machine
    segments: tuple[SegmentProfile, ...]
    crossings: tuple[Crossing, ...]
    reshardings: Mapping[Resharding, float]
    base_s: float  # starting a program takes base_s + arguments * each_s: removed from all times
    each_s: float
    compiled: int
    loaded: int
    compile_s: float
    seconds: float
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """The crossings that differ."""
        return tuple(dict.fromkeys(crossing.boundary for crossing in self.crossings))

    def resharding_s(self, boundary: Boundary, source: Option, target: Option) -> float | None:
        """Seconds that one crossing takes for a choice on each side."""
        left = self.segments[boundary.source.kind].layouts[source]
        right = self.segments[boundary.target.kind].layouts[target]
        needed = boundary.resharding(left, right)
        return 0.0 if needed is None else self.reshardings.get(needed)
