"""What measuring tells whoever watches, and how long it will still take.

That follows from what is ahead, and from what such programs took so far:

    left = Σ over kinds of program of programs ahead * seconds of each

The kind of a program is what its name begins with: `chained segment 1`, `resharding`, `full step`.
How many are ahead is a range: which options are worth measuring is only known as others are
measured. Seconds are of the clock, compiling included, and the last programs count most. What a
kind that was not seen yet will take is guessed from the segments that were, and what full steps
will take from what their segments take (`expect_each`). Nothing is said before the first segment
was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cfp.profile.measure.measurement import Measurement

RESHARDING, FULL_STEP = "resharding", "full step"
NEWEST = 0.3  # the weight of the last program of a kind: a machine does not stay as it was
SMALL = 0.05  # what a resharding takes, as a share of a segment's seconds, before one was measured


@dataclass(frozen=True, slots=True)
class Ahead:
    """How many programs are ahead, at least and at most."""

    low: float
    high: float

    def plus(self, other: Ahead) -> Ahead:
        return Ahead(self.low + other.low, self.high + other.high)


class Outlook:
    """What is ahead, and how long it will take. `later` are programs known to come after those
    being measured, by kind."""

    def __init__(self) -> None:
        self.later: Mapping[str, Ahead] = {}
        self._each_s: dict[str, float] = {}
        self._expected_s: dict[str, float] = {}
        self._asked = self._missing = 0

    def found(self, asked: int, missing: int) -> None:
        """Learns how many of the programs that were asked for the store does not have. It may have
        as large a share of later ones, or none."""
        self._asked += asked
        self._missing += missing

    def saw(self, programs: Sequence[tuple[str, float]], seconds: float) -> None:
        """Learns how long programs took that were compiled and run side by side: each is a kind and
        a weight, in proportion to which it took its part."""
        total = sum(weight for _, weight in programs)
        for kind, weight in programs:
            each_s = seconds * (weight / total if total else 1 / len(programs))
            before_s = self._each_s.get(kind, each_s)
            self._each_s[kind] = before_s + NEWEST * (each_s - before_s)

    def expect_each(self, kind: str, seconds: float) -> None:
        """Says what a program of a kind will take, where none was seen yet."""
        self._expected_s[kind] = seconds

    def left_s(self, now: Mapping[str, int]) -> tuple[float, float] | None:
        """Returns seconds at least and at most for those being measured and those later; None while
        nothing can be said."""
        low_s = high_s = 0.0
        share = self._missing / self._asked if self._asked else 1.0
        for kind in {**now, **self.later}:
            later = self.later.get(kind, Ahead(0, 0))
            if now.get(kind, 0) + later.high == 0:
                continue
            each_s = self._seconds(kind)
            if each_s is None:
                return None
            low_s += (now.get(kind, 0) + share * later.low) * each_s
            high_s += (now.get(kind, 0) + later.high) * each_s
        return low_s, high_s

    def _seconds(self, kind: str) -> float | None:
        found = self._each_s.get(kind, self._expected_s.get(kind))
        if found is not None or kind == FULL_STEP:
            return found
        twice_s = self._each_s.get(f"chained {kind}")
        if twice_s is not None:
            return twice_s / 2
        segments = [s for name, s in self._each_s.items() if "segment" in name]
        if not segments:
            return None
        return max(segments) * (SMALL if kind == RESHARDING else 1.0)


def kind_of(name: str) -> str:
    """Returns the kind of a program by its name: `full step: megatron` is a full step."""
    return name.partition(":")[0].partition(",")[0]


def left_text(low_s: float, high_s: float) -> str:
    """Returns `about 40 s`, `1 to 4 min`: as exactly as it is known.

    >>> left_text(38, 52), left_text(50, 200), left_text(23, 52)
    ('about 45 s', '1 to 3 min', '20 to 50 s')
    """
    if high_s <= 1.5 * low_s or high_s < 10:
        middle_s = (low_s + high_s) / 2
        return f"about {middle_s:.0f} s" if middle_s < 100 else f"about {middle_s / 60:.0f} min"
    if high_s < 100:
        return f"{_rounded(low_s)} to {_rounded(high_s)} s"
    return f"{low_s / 60:.0f} to {high_s / 60:.0f} min"


def _rounded(seconds: float) -> str:
    return f"{10 * round(seconds / 10) if seconds >= 20 else round(seconds)}"


class Progress:
    """Is told what measuring does, and says nothing; a subclass overrides what it wants to hear."""

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
