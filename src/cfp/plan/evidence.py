"""Why a plan was chosen: what was predicted of it, what its step measured, and what else there was.

Plain values that a plan carries into its file. Templates have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cfp.plan.fields import Fields
from cfp.profile.confidence import level


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What one segment of the plan is expected to add to a step, on one device.

    `resharding_s` is of the tensors that come in. The sum of `kept_bytes` over segments and the
    largest `scratch_bytes` bound what the step needs.
    """

    splits: str
    compute_s: float
    communication_s: float
    resharding_s: float
    kept_bytes: int
    scratch_bytes: int

    @property
    def time_s(self) -> float:
        return self.compute_s + self.communication_s + self.resharding_s


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan that is the fastest for its memory, as predicted; `splits` by segment, alike ones
    together."""

    time_s: float
    memory_bytes: int
    splits: str


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A full step under a plan, run in turn with others: `runs_s` are one of each round. With 95 %
    confidence their median is between `low_s` and `high_s`. `failed` says why it did not run; then
    the rest is 0."""

    name: str
    predicted_s: float | None
    measured_s: float
    low_s: float
    high_s: float
    memory_bytes: int
    failed: str | None = None
    runs_s: tuple[float, ...] = ()

    def ties(self, other: MeasuredStep) -> bool:
        """Which of the two is faster cannot be told; nor where runs were not kept."""
        return level(self.runs_s, other.runs_s) is not False


@dataclass(frozen=True, slots=True)
class Evidence:
    """`steps` are the full steps that were measured, the plan's own first; none without audit.

    `slack_bytes` bounds what rounding memory may have cost the search: no plan that needs that
    much less than the limit is predicted to be faster. `seed` is that of the random values the
    programs ran on; `programs` were measured in `seconds`, `loaded` of them before.
    """

    memory_limit_bytes: int | None
    slack_bytes: int
    seed: int
    seconds: float
    programs: int
    loaded: int
    segments: tuple[SegmentCost, ...]
    frontier: tuple[FrontierPoint, ...]
    steps: tuple[MeasuredStep, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_fields(fields: Fields) -> Evidence:
        return Evidence(
            memory_limit_bytes=fields.optional_integer("memory_limit_bytes"),
            slack_bytes=fields.integer("slack_bytes"),
            seed=fields.integer("seed"),
            seconds=fields.number("seconds"),
            programs=fields.integer("programs"),
            loaded=fields.integer("loaded"),
            segments=tuple(_segment(entry) for entry in fields.objects("segments")),
            frontier=tuple(
                FrontierPoint(
                    entry.number("time_s"), entry.integer("memory_bytes"), entry.text("splits")
                )
                for entry in fields.objects("frontier")
            ),
            steps=tuple(_step(entry) for entry in fields.objects("steps")),
        )


def tied(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Those that may be as fast as the first."""
    return [step for step in steps[1:] if step.failed is None and step.ties(steps[0])]


def _segment(entry: Fields) -> SegmentCost:
    return SegmentCost(
        splits=entry.text("splits"),
        compute_s=entry.number("compute_s"),
        communication_s=entry.number("communication_s"),
        resharding_s=entry.number("resharding_s"),
        kept_bytes=entry.integer("kept_bytes"),
        scratch_bytes=entry.integer("scratch_bytes"),
    )


def _step(entry: Fields) -> MeasuredStep:
    return MeasuredStep(
        name=entry.text("name"),
        predicted_s=None if entry.is_null("predicted_s") else entry.number("predicted_s"),
        measured_s=entry.number("measured_s"),
        low_s=entry.number("low_s"),
        high_s=entry.number("high_s"),
        memory_bytes=entry.integer("memory_bytes"),
        failed=entry.optional_text("failed"),
        runs_s=tuple(entry.numbers("runs_s")) if entry.has("runs_s") else (),  # older plans
    )
