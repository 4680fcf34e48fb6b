"""What profiling returns: the measured cost of every option of every distinct segment, and of every
resharding between them; and the form in which it is sent to a process that has the same analysis,
which leaves the programs out (`pack_profile`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cfp.analysis import Analysis
from cfp.cluster.wire import decode, encode
from cfp.layouts import Layouts
from cfp.profile.measure.costs import Cost, SegmentProfile
from cfp.profile.measure.sent import Sent
from cfp.profile.programs.boundary import Boundary, Crossing, Interfaces, find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Option
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Resharding


@dataclass(frozen=True, slots=True)
class Profile:
    """`resharding_s` is None for a resharding that the compiler refused or the budget left out.

    `compiled` and `loaded` count programs; `missing` says what the budget left out.
    """

    machine: Machine
    segments: tuple[SegmentProfile, ...]
    interfaces: Interfaces
    reshardings: Mapping[Resharding, float]
    base_s: float  # starting a program takes base_s + arguments * each_s: removed from all times
    each_s: float
    compiled: int
    loaded: int
    compile_s: float
    seconds: float
    missing: tuple[str, ...]

    @property
    def crossings(self) -> tuple[Crossing, ...]:
        """Returns the tensors that cross between segments."""
        return self.interfaces.crossings

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Returns the crossings that differ."""
        return tuple(dict.fromkeys(crossing.boundary for crossing in self.crossings))

    def resharding_s(self, boundary: Boundary, source: Option, target: Option) -> float | None:
        """Returns seconds that one crossing takes for a choice on each side."""
        left = self.segments[boundary.source.kind].layouts[source]
        right = self.segments[boundary.target.kind].layouts[target]
        needed = boundary.resharding(left, right)
        return 0.0 if needed is None else self.reshardings.get(needed)


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """The fields of a `SegmentProfile` but its kind."""

    costs: Mapping[Option, Cost]
    failed: Mapping[Option, str]
    layouts: Mapping[Option, tuple[Layouts, ...]]
    finished: bool
    sent: Mapping[Option, tuple[Sent, ...]]


@dataclass(frozen=True, slots=True)
class PackedProfile:
    """The fields of a `Profile` but its interfaces."""

    machine: Machine
    segments: tuple[PackedSegment, ...]
    reshardings: Mapping[Resharding, float]
    base_s: float
    each_s: float
    compiled: int
    loaded: int
    compile_s: float
    seconds: float
    missing: tuple[str, ...]


def pack_profile(found: Profile) -> bytes:
    segments = tuple(PackedSegment(**_fields(PackedSegment, one)) for one in found.segments)
    return encode(PackedProfile(**{**_fields(PackedProfile, found), "segments": segments}))


def unpack_profile(data: bytes, analysis: Analysis) -> Profile:
    """Returns the profile; its programs are those of `analysis`."""
    packed = decode(data, PackedProfile)
    kinds = find_kinds(analysis)
    segments = tuple(
        SegmentProfile(kind=kind, **_fields(PackedSegment, one))
        for kind, one in zip(kinds, packed.segments, strict=True)
    )
    rest = {**_fields(PackedProfile, packed), "segments": segments}
    return Profile(interfaces=find_interfaces(analysis, kinds), **rest)


def _fields(kind: Any, value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(kind)}
