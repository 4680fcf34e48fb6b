"""What was measured of one program, as it is stored: raw runs, and what they mean.

    time = median of the runs / drift - overhead

`drift` is how much slower than usual the machine was meanwhile, by the anchor: a program that runs
in turn with every other. The anchor's runs are few and vary: by chance alone drifts would differ,
with a relative standard deviation of `drift_sd`. `overhead` is what it takes to start a program
that does nothing, with as many arguments. Both are of the host's clock: what a recording says of
the device (`on_device`, `replayed`) has neither.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import msgspec

from cfp.links.collectives import MeshCollective
from cfp.links.replay import Times, replay
from cfp.profile.measure.confidence import median_interval
from cfp.profile.runners.job import Memory, Shares


class Provenance(enum.StrEnum):
    """How a time came to be known: by running it, by replaying measured kernels with what links say
    of communication, or by composing times of segments."""

    MEASURED = "measured"
    REPLAYED = "replayed"
    PREDICTED = "predicted"


STORED_AS = "cut"  # the name of `stopped_early` in stored rows: another would lose old ones


@dataclass(frozen=True, slots=True)
class Measurement:
    """The runs of one program, and what else is known of it. `failed` says why a program does not
    run here; then nothing else is known of it.

    A program that is far behind the best is `stopped_early`: its few runs give a rough figure, and
    `at_least_s` is a lower bound of its time. Stored rows call this `cut`.
    """

    key: str
    name: str
    runs_s: tuple[float, ...] = ()
    drift: float = 1.0
    overhead_s: float = 0.0
    stopped_early: bool = False
    compile_s: float = 0.0
    memory: Memory | None = None
    shares: Shares | None = None
    failed: str | None = None
    drift_sd: float = 0.0
    collectives: tuple[MeshCollective, ...] | None = None  # older rows do not have them

    @property
    def usual_s(self) -> float:
        """Returns what a run takes from start to end when the machine is as usual."""
        return statistics.median(self.runs_s) / self.drift

    @property
    def time_s(self) -> float:
        return self._net(statistics.median(self.runs_s))

    @property
    def at_least_s(self) -> float:
        return self._net(min(self.runs_s))

    @property
    def interval_s(self) -> tuple[float, float]:
        """Returns the interval that `time_s` is in with 95 % confidence."""
        low, high = median_interval(self.runs_s)
        return self._net(low), self._net(high)

    @property
    def spread_s(self) -> float:
        """Returns half of the range that the middle half of the runs is in."""
        if len(self.runs_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.runs_s, n=4, method="inclusive")
        return (high - low) / 2 / self.drift

    def _net(self, seconds: float) -> float:
        return max(seconds / self.drift - self.overhead_s, 0.0)

    def split(self) -> Shares | None:
        """Returns the time told apart, where compute, transfer and waiting add up to `time_s`; None
        where that is unknown."""
        shares = self.shares
        total = 0.0 if shares is None else shares.compute_s + shares.transfer_s + shares.waiting_s
        if shares is None or total <= 0:
            return None
        scale = self.time_s / total
        return shares.scaled(scale)

    @property
    def provenance(self) -> Provenance:
        scheduled = self.shares is not None and self.shares.schedule is not None
        return Provenance.REPLAYED if scheduled else Provenance.MEASURED

    @property
    def exposed_s(self) -> float:
        """Returns the time in collectives beside which nothing is computed; 0 where nothing tells
        it."""
        return 0.0 if self.shares is None else self.shares.transfer_s + self.shares.waiting_s

    @property
    def communication_s(self) -> float:
        """Returns the time in collectives, also where something is computed beside them."""
        return self.exposed_s + (0.0 if self.shares is None else self.shares.hidden_s)

    def on_device(self) -> Measurement:
        """Returns what the program takes of a device's time, where that is less than what the host
        sees; else this very measurement. A segment alone may be over before the host has launched
        the next kernel, while in a step the host is ahead of the device."""
        shares = self.shares
        busy_s = 0.0
        if shares is not None:
            busy_s = shares.compute_s + shares.transfer_s + shares.waiting_s
        if not 0 < busy_s < self.time_s * self.drift:
            return self
        scale = busy_s / statistics.median(self.runs_s)
        runs_s = tuple(run_s * scale for run_s in self.runs_s)
        return replace(self, runs_s=runs_s, drift=1.0, overhead_s=0.0)

    def replayed(self, network: Times) -> Measurement:
        """Returns what the program takes on a network, of a measurement on a device that stands in
        for others: its kernels as they were measured, its collectives as the network says. The
        runs keep their spread. What starting it takes is no part of the device's time."""
        shares = self.shares
        if shares is None:  # it ran on one device alone, or was stopped early
            return self
        if shares.schedule is None:
            return Measurement(self.key, self.name, failed=shares.unreplayed)
        found = replay(shares.schedule, network)
        scale = found.time_s / statistics.median(self.runs_s)
        hidden_s = max(found.communication_s - found.exposed_s, 0.0)
        return replace(
            self,
            runs_s=tuple(run_s * scale for run_s in self.runs_s),
            drift=1.0,
            overhead_s=0.0,
            shares=replace(
                shares,
                compute_s=found.compute_s,
                transfer_s=found.exposed_s,
                hidden_s=hidden_s,
            ),
        )

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document[STORED_AS] = document.pop("stopped_early")
        return document

    @staticmethod
    def from_json(document: Mapping[str, Any], key: str | None = None) -> Measurement:
        """Raises `ValueError` where the document is no measurement, or not that of the `key`."""
        try:
            found = msgspec.convert(
                {"stopped_early": document.get(STORED_AS, False), **document}, Measurement
            )
        except (msgspec.ValidationError, OverflowError) as error:
            raise ValueError(str(error)) from None
        found._check()
        if key not in (None, found.key):
            raise ValueError("it is that of another program")
        return found

    def _check(self) -> None:
        shares, memory = self.shares or Shares(0.0, 0.0, 0.0), self.memory or Memory(0, 0, 0, 0)
        numbers = {
            "runs_s": self.runs_s,
            "drift": (self.drift,),
            "overhead_s": (self.overhead_s,),
            "compile_s": (self.compile_s,),
            "drift_sd": (self.drift_sd,),
            "shares": (shares.compute_s, shares.transfer_s, shares.waiting_s, shares.hidden_s),
            "memory": astuple(memory),
        }
        for name, values in numbers.items():
            if not all(0 <= value < math.inf for value in values):
                raise ValueError(f"`{name}` has numbers that no measurement has")
        if shares.schedule is not None:
            shares.schedule.check()
        if self.drift == 0:
            raise ValueError("`drift` is 0")
        if self.failed is None and (not self.runs_s or self.memory is None):
            raise ValueError("it has no runs, or no memory")
