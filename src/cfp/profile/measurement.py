"""What was measured of one program, as it is stored: raw runs, and what they mean.

    time = median of the runs / drift - overhead

`drift` is how much slower than usual the machine was meanwhile, by the anchor: a program that runs
in turn with every other. The anchor's runs are few and vary: by chance alone drifts would differ,
with a relative standard deviation of `drift_sd`. `overhead` is what it takes to start a program
that does nothing, with as many arguments.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cfp.profile.confidence import median_interval
from cfp.profile.job import Memory, Shares


@dataclass(frozen=True, slots=True)
class Measurement:
    """`failed` says why a program does not run here; then nothing else is known of it.

    `cut` means given up early, being clearly slower than the best: the few runs are a rough figure,
    and `at_least_s` what it takes at least.
    """

    key: str
    name: str
    runs_s: tuple[float, ...] = ()
    drift: float = 1.0
    overhead_s: float = 0.0
    cut: bool = False
    compile_s: float = 0.0
    memory: Memory | None = None
    shares: Shares | None = None
    failed: str | None = None
    drift_sd: float = 0.0

    @property
    def usual_s(self) -> float:
        """What a run takes from start to end when the machine is as usual."""
        return statistics.median(self.runs_s) / self.drift

    @property
    def time_s(self) -> float:
        return self._net(statistics.median(self.runs_s))

    @property
    def at_least_s(self) -> float:
        return self._net(min(self.runs_s))

    @property
    def interval_s(self) -> tuple[float, float]:
        """Between which `time_s` lies with 95 % confidence."""
        low, high = median_interval(self.runs_s)
        return self._net(low), self._net(high)

    @property
    def spread_s(self) -> float:
        """Half of the range that the middle half of the runs lies in."""
        if len(self.runs_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.runs_s, n=4, method="inclusive")
        return (high - low) / 2 / self.drift

    def _net(self, seconds: float) -> float:
        return max(seconds / self.drift - self.overhead_s, 0.0)

    def split(self) -> Shares | None:
        """The time told apart: compute, transfer and waiting add up to `time_s`. None: unknown."""
        shares = self.shares
        total = 0.0 if shares is None else shares.compute_s + shares.transfer_s + shares.waiting_s
        if shares is None or total <= 0:
            return None
        scale = self.time_s / total
        return Shares(shares.compute_s * scale, shares.transfer_s * scale, shares.waiting_s * scale)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Measurement:
        fields = dict(document)
        for name, kind in (("memory", Memory), ("shares", Shares)):
            if fields[name] is not None:
                fields[name] = kind(**fields[name])
        return replace(Measurement(**fields), runs_s=tuple(fields["runs_s"]))
