"""A link says what a collective takes on hardware that may not be here.

It is a table: for a kind of collective and a group of n devices, the time of a few sizes (`Curve`).
Between two sizes time is a straight line, latency + bytes / bandwidth, which is one regime of the
hardware (a protocol of the library); the steps of the table are the regimes.

Sizes count the tensor that the group holds together, as nccl-tests does: the local operand of a
reduce-scatter, and the local result of every other kind. `HloCollective.bytes` counts by
the same rule, so that the bytes of a compiled module go into `Link.time_s` as they are.

A group that is not in the table is filled in by the model of rings and trees. The time of a group
is its latency L(n), which grows with the steps of a tree, log2 n, and the transfer w(n) r(n), where
the ring sends every byte w(n) = (n - 1) / n times (twice for an all-reduce, once for a permute):

    between two tabled groups   L and r are interpolated in log2 n
    beyond the outermost one m  L(n) = L(m) log2 n / log2 m,  r(n) = r(m)

A link without a table of permutes takes that of an all-to-all between two devices, of twice the
bytes: it sends half of its tensor each way.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cfp.errors import CfpError

Scope = Literal["node", "network"]  # inside one machine, or between machines

PERMUTE = "collective-permute"
# the collectives that every link has a table of, by XLA's names; permutes may be left out
REQUIRED = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
COLLECTIVES = (*REQUIRED, PERMUTE)
# kinds that XLA has besides, each with the one it moves as much as, at most
_LIKE = {"ragged-all-to-all": "all-to-all", "collective-broadcast": PERMUTE}


@dataclass(frozen=True, slots=True)
class FitError:
    """How far the table is from the measurements it was made of, relative to these."""

    median: float
    worst: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of a collective in one group, by size: both rise.

    Below the smallest size the time is that size's; above the largest its bandwidth goes on.

    >>> Curve((1000, 3000), (1.0, 2.0)).time_s(2000)
    1.5
    """

    bytes: tuple[int, ...]
    times_s: tuple[float, ...]

    @property
    def latency_s(self) -> float:
        return self.times_s[0]

    def time_s(self, size_bytes: float) -> float:
        last = len(self.bytes) - 1
        after = bisect_right(self.bytes, size_bytes)
        if after == 0:
            return self.latency_s
        if after > last:
            return self.times_s[last] * size_bytes / self.bytes[last]
        low, high = self.bytes[after - 1], self.bytes[after]
        share = (size_bytes - low) / (high - low)
        return self.times_s[after - 1] * (1 - share) + self.times_s[after] * share


@dataclass(frozen=True, slots=True)
class Link:
    """The time of every collective along one mesh axis.

    `device` is how the name of the devices begins that it was measured between, None where it does
    not matter; `error` is None where nobody knows it.
    """

    name: str
    scope: Scope
    device: str | None
    source: str
    error: FitError | None
    tables: Mapping[str, Mapping[int, Curve]]  # by collective, and by size of the group

    def time_s(self, collective: str, group: int, size_bytes: float) -> float:
        """Returns the seconds of one collective in groups of `group` devices, all at once;
        `size_bytes` are of the tensor that a group holds together."""
        if group < 2 or size_bytes <= 0:
            return 0.0
        kind = _LIKE.get(collective, collective)
        if kind not in COLLECTIVES:
            known = ", ".join((*COLLECTIVES, *_LIKE))
            raise CfpError(f"`{collective}` is no collective that links know: they are {known}.")
        if kind == PERMUTE and PERMUTE not in self.tables:
            return self.time_s("all-to-all", 2, 2 * size_bytes)
        curves = self.tables[kind]
        if group in curves:
            return curves[group].time_s(size_bytes)
        return _fill_in(curves, kind, group, size_bytes)

    def has(self, collective: str, group: int) -> bool:
        """Returns whether the table has this group, or the model of rings and trees fills it in."""
        return group in self.tables.get(_LIKE.get(collective, collective), {})

    def is_between(self, device_kind: str) -> bool:
        """Returns whether the link was measured between devices of this kind, by JAX's name."""
        return self.device is None or device_kind.lower().startswith(self.device.lower())

    def show(self) -> str:
        """Returns the link as text: the latency of every collective, and its bandwidths."""
        error = "unknown"
        if self.error is not None:
            error = f"median {self.error.median:.1%}, worst {self.error.worst:.1%}"
        lines = [
            f"link {self.name}",
            f"  between: {self.device or 'any devices'}",
            f"  scope: {SCOPES[self.scope]}",
            f"  source: {self.source}",
            f"  error: {error}",
        ]
        for kind, curves in self.tables.items():
            for group, curve in sorted(curves.items()):
                sizes = (size for size in SHOWN_BYTES if size <= curve.bytes[-1])
                speeds = ", ".join(
                    f"{size / curve.time_s(size) / 1e9:.3g} GB/s at {size // 2**20} MiB"
                    for size in sizes
                )
                latency = _time_text(curve.latency_s)
                lines.append(f"  {kind} over {group}: {latency}" + (speeds and f", {speeds}"))
        return "\n".join(lines)


SCOPES: Mapping[Scope, str] = {"node": "inside one machine", "network": "between machines"}
SHOWN_BYTES = (2**20, 2**24, 2**28)  # 1, 16 and 256 MiB: an activation, a layer, a model's state


def _time_text(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} us" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def wire_factor(collective: str, group: int) -> float:
    """Returns how often a ring sends each byte of the tensor out of one device: nccl-tests' factor
    from time to bus bandwidth."""
    if collective == PERMUTE:
        return 1.0
    return (2 if collective == "all-reduce" else 1) * (group - 1) / group


def _fill_in(curves: Mapping[int, Curve], kind: str, group: int, size_bytes: float) -> float:
    """Returns the time in a group between or beyond those of the table (the module's formula)."""
    low = max((n for n in curves if n < group), default=None)
    high = min((n for n in curves if n > group), default=None)

    def latency_s(n: int) -> float:
        return curves[n].latency_s

    def transfer_s(n: int) -> float:
        return (curves[n].time_s(size_bytes) - latency_s(n)) / wire_factor(kind, n)

    if low is not None and high is not None:
        share = math.log2(group / low) / math.log2(high / low)
        latency = (1 - share) * latency_s(low) + share * latency_s(high)
        transfer = (1 - share) * transfer_s(low) + share * transfer_s(high)
    else:
        near = low if low is not None else high
        assert near is not None, "a link has a group for every collective"
        latency = latency_s(near) * math.log2(group) / math.log2(near)
        transfer = transfer_s(near)
    return latency + wire_factor(kind, group) * transfer
