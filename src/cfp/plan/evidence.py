"""Why a plan was chosen: what was predicted of it, what its step measured, and what else there was.

Plain values that a plan carries into its file. Templates have none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cfp.plan.fields import Fields
from cfp.profile.measure.confidence import Judgement, judge


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What one segment of the plan is expected to add to a step, on one device.

    `segment_s` is what it takes itself, of which `compute_s` and `communication_s` are parts: None
    where they were not measured. `resharding_s` is of the tensors that come in. The sum of
    `kept_bytes` over segments and the largest `scratch_bytes` bound what the step needs.
    """

    splits: str
    segment_s: float
    compute_s: float | None
    communication_s: float | None
    resharding_s: float
    kept_bytes: int
    scratch_bytes: int

    @property
    def time_s(self) -> float:
        return self.segment_s + self.resharding_s


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan that is the fastest for its memory, by the prediction; `splits` are by segment, alike
    ones together."""

    time_s: float
    memory_bytes: int
    splits: str


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A full step under a plan, run in turn with others: `runs_s` has one run of each round. With
    95 % confidence their median is between `low_s` and `high_s`.

    Of a step that was not measured all figures are None: `failed` says why it does not run, or
    `left_out` why it was not tried, or not to the end."""

    name: str
    predicted_s: float | None
    measured_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    memory_bytes: int | None = None
    failed: str | None = None
    left_out: str | None = None
    runs_s: tuple[float, ...] = ()

    @property
    def ran(self) -> bool:
        return self.failed is None and self.left_out is None

    @property
    def time_s(self) -> float:
        """Returns the measured time of a step that ran."""
        assert self.measured_s is not None, f"{self.name} was not measured"
        return self.measured_s

    def why_not(self) -> str:
        """Says why it was not measured."""
        return f"does not run: {self.failed}" if self.failed else f"not run: {self.left_out}"

    def beside(self, other: MeasuredStep) -> Judgement:
        """Judges this step beside another by the rounds they share; older plans did not keep
        them."""
        return judge(self.runs_s, other.runs_s)


@dataclass(frozen=True, slots=True)
class FailedProgram:
    """A program that does not run, so that no plan was made with it. `recorded` failures are not
    tried again until `cfp cache prune --failed`."""

    name: str
    reason: str
    recorded: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a plan was chosen. It has two sets of full steps, each run in turn, the plan's own first;
    without audit it has none. By the rounds of `steps` the plan was chosen. Being the best of
    several in those rounds, it is flattered by them: `confirmed` are fresh rounds of it, with
    templates and the step on one device alone beside it.

    `slack_bytes` bounds what rounding memory may have cost the search: no plan that needs that
    much less than the limit searched for is predicted to be faster than the first one proposed.
    (The limit searched for is the memory limit, corrected by what steps need beyond what is
    predicted of them.) `seed` is that of the random values the programs ran on; `programs` were
    measured in `seconds`, `loaded` of them before; `failed` are those that do not run. `start_s` is
    what starting the step takes, as predicted: with the segments it adds up to the prediction.
    """

    memory_limit_bytes: int | None
    slack_bytes: int
    seed: int
    seconds: float
    programs: int
    loaded: int
    start_s: float
    segments: tuple[SegmentCost, ...]
    frontier: tuple[FrontierPoint, ...]
    steps: tuple[MeasuredStep, ...]
    confirmed: tuple[MeasuredStep, ...]
    failed: tuple[FailedProgram, ...] = ()

    @property
    def own(self) -> MeasuredStep | None:
        """Returns the plan's own step, on fresh rounds if there are any; None where it was never
        run."""
        found = (*self.confirmed[:1], *self.steps[:1])
        return next((step for step in found if step.ran), None)

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
            start_s=fields.number("start_s") if fields.has("start_s") else 0.0,  # older plans
            segments=tuple(_segment(entry) for entry in fields.objects("segments")),
            frontier=tuple(
                FrontierPoint(
                    entry.number("time_s"), entry.integer("memory_bytes"), entry.text("splits")
                )
                for entry in fields.objects("frontier")
            ),
            steps=_steps(fields, "steps"),
            confirmed=_steps(fields, "confirmed") if fields.has("confirmed") else (),  # older plans
            failed=tuple(
                FailedProgram(entry.text("name"), entry.text("reason"), entry.flag("recorded"))
                for entry in (fields.objects("failed") if fields.has("failed") else ())  # older
            ),
        )


def _segment(entry: Fields) -> SegmentCost:
    compute_s, communication_s = map(entry.optional_number, ("compute_s", "communication_s"))
    parts_s = (compute_s or 0.0) + (communication_s or 0.0)
    return SegmentCost(
        splits=entry.text("splits"),
        segment_s=entry.number("segment_s") if entry.has("segment_s") else parts_s,  # older plans
        compute_s=compute_s,
        communication_s=communication_s,
        resharding_s=entry.number("resharding_s"),
        kept_bytes=entry.integer("kept_bytes"),
        scratch_bytes=entry.integer("scratch_bytes"),
    )


def _steps(fields: Fields, name: str) -> tuple[MeasuredStep, ...]:
    return tuple(_step(entry) for entry in fields.objects(name))


def _step(entry: Fields) -> MeasuredStep:
    failed = entry.optional_text("failed")
    left_out = entry.optional_text("left_out") if entry.has("left_out") else None  # older plans
    name, predicted_s = entry.text("name"), entry.optional_number("predicted_s")
    if failed is not None or left_out is not None:  # older plans have zeros then
        return MeasuredStep(name, predicted_s, failed=failed, left_out=left_out)
    if not entry.number("measured_s") > 0:
        raise entry.wrong("measured_s", "a time above 0")
    return MeasuredStep(
        name=name,
        predicted_s=predicted_s,
        measured_s=entry.number("measured_s"),
        low_s=entry.number("low_s"),
        high_s=entry.number("high_s"),
        memory_bytes=entry.integer("memory_bytes"),
        runs_s=tuple(entry.numbers("runs_s")) if entry.has("runs_s") else (),  # older plans
    )
