"""What measuring tells whoever watches. All optional; the default says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from cfp.profile.measure.measurement import Measurement


class Progress:
    """Is told what measuring does; a subclass overrides what it wants to hear."""

    def stage(self, name: str) -> None:
        """Is told what is being done besides measuring."""

    def expect(self, programs: int) -> None:
        """Is told how many programs are known to be needed from here on."""

    def ahead(self, low_s: float, high_s: float) -> None:
        """Is told how long all that is still to be measured, in this and later stages, will take:
        between `low_s` and `high_s` seconds."""

    def compiling(self, names: Sequence[str]) -> None: ...

    def running(self, names: Sequence[str]) -> None: ...

    def loaded(self, count: int) -> None:
        """Is told how many measurements were found in the store."""

    def measured(self, measurement: Measurement, best_s: float | None) -> None:
        """Is told of a measurement that was written to the store; `best_s` is the fastest of those
        it competes with."""

    def waiting(self, holder: str) -> None:
        """Is told that another planner is measuring on these devices: `holder` says which."""

    def lost(self, reason: str) -> None:
        """Is told that the worker had to be started again."""
