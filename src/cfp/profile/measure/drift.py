"""How fast the machine usually was, by the drifts of all waves of programs.

Drifts are stored relative to the anchor's first measurement, which may have been in a slow moment:
their median is the usual one. And the anchor's few runs vary. On a noisy machine they vary more
than it drifts, and to divide times by such drifts would add noise to them: so the share of what
drifts differ by that is chance is taken out of each.
"""

from __future__ import annotations

import math
import statistics

from cfp.profile.measure.measurement import Measurement

TELLING = 5  # waves, whose drifts tell how much of them is chance: fewer have no variance to trust


class UsualDrift:
    """How much of a drift is not chance. `usual` is the usual drift; `trust` is the share of a
    difference from it that is not chance."""

    def __init__(self) -> None:
        self.usual = 1.0
        self.trust = 1.0
        self._sds: dict[float, float] = {}  # by drift: one per wave that ran with an anchor

    def see(self, stored: Measurement) -> None:
        if stored.failed is None and stored.drift != 1.0:  # without an anchor it is
            self._sds[stored.drift] = stored.drift_sd

    def settle(self) -> None:
        if self._sds:
            self.usual = statistics.median(self._sds)
        if len(self._sds) >= TELLING:
            chance = statistics.mean(sd**2 for sd in self._sds.values())
            self.trust = max(0.0, 1 - chance / statistics.variance(map(math.log, self._sds)))

    def drift(self, stored: float) -> float:
        """Returns how much slower than usual the anchor was."""
        return float((stored / self.usual) ** self.trust)
