"""What measuring tells whoever watches. All optional; the default says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from cfp.profile.measurement import Measurement


class Progress:
    """Override what you want to hear."""

    def stage(self, name: str) -> None:
        """What is being done besides measuring."""

    def expect(self, programs: int) -> None:
        """So many programs are known to be needed from here on."""

    def compiling(self, names: Sequence[str]) -> None: ...

    def running(self, names: Sequence[str]) -> None: ...

    def loaded(self, count: int) -> None:
        """Found in the store."""

    def measured(self, measurement: Measurement, best_s: float | None) -> None:
        """Written to the store; `best_s` is the fastest of those it competes with."""

    def waiting(self) -> None:
        """Another planner is measuring on these devices."""

    def lost(self, reason: str) -> None:
        """The worker had to be started again."""
