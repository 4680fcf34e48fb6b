"""Why a plan was chosen: what was predicted of it, what its step measured, and what else there was.

Plain values that a plan carries into its file. Templates have none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cfp.links.network import Network
from cfp.plan.fields import Fields
from cfp.plan.measured_kinds import MeasuredKind, read_kinds, read_sent
from cfp.profile.measure.confidence import Judgement, judge, judge_replays
from cfp.profile.measure.measurement import Provenance
from cfp.profile.measure.sent import Sent


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
class Links:
    """What the times of a plan were replayed with: the link along each mesh axis, by name, and the
    largest median error of them, relative (None where nobody knows it). `stand_ins` devices stood
    in for those of the mesh."""

    by_axis: tuple[tuple[str, str], ...]
    error: float | None
    stand_ins: int

    @staticmethod
    def of(network: Network, stand_ins: int) -> Links:
        names = zip(network.axes, (link.name for link in network.links), strict=True)
        return Links(tuple(names), network.error, stand_ins)

    def show(self) -> str:
        """Returns `x over ib_400g, y over h200_nvlink, known to 2 %`."""
        along = ", ".join(f"{axis} over {name}" for axis, name in self.by_axis)
        known = "an error that nobody knows" if self.error is None else f"{self.error:.1%} of error"
        return f"{along}, with {known}"


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A full step under a plan, run in turn with others: `runs_s` has one run of each round. With
    95 % confidence their median is between `low_s` and `high_s`.

    Its time is `compute_s` and `exposed_s`, communication that has nothing computed beside it. A
    step that was `replayed` has measured kernels and the communication of the plan's links:
    `communication_s` in all, and `error_s` is what the error of the links may change.

    Of a step that was not measured all figures are None: `failed` says why it does not run, or
    `left_out` why it was not tried, or not to the end. `sent` is what the step sends, by source
    line. What was not recorded is None."""

    name: str
    predicted_s: float | None
    measured_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    memory_bytes: int | None = None
    failed: str | None = None
    left_out: str | None = None
    runs_s: tuple[float, ...] = ()
    provenance: Provenance = Provenance.MEASURED
    communication_s: float | None = None
    exposed_s: float | None = None
    error_s: float = 0.0
    sent: tuple[Sent, ...] | None = None
    compute_s: float | None = None

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
        """Judges this step beside another by their replays, or by the rounds they share; older
        plans did not keep them."""
        replayed = Provenance.REPLAYED in (self.provenance, other.provenance)
        if not replayed or self.measured_s is None or other.measured_s is None:
            return judge(self.runs_s, other.runs_s)
        error_s = max(self.error_s, other.error_s)
        return judge_replays(self.measured_s, other.measured_s, error_s)


@dataclass(frozen=True, slots=True)
class FailedProgram:
    """A program that does not run, so that no plan was made with it. `recorded` failures are not
    tried again until `cfp cache prune --failed`."""

    name: str
    reason: str
    recorded: bool


@dataclass(frozen=True, slots=True)
class Spent:
    """What one stage of planning took, of the clock."""

    stage: str
    seconds: float


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
    measured in `seconds`, `loaded` of them before; `failed` are those that do not run. `ran` ran
    now, and `taken_over` did not have to, having the kernels of another that did. `start_s` is
    what starting the step takes, as predicted: with the segments it adds up to the prediction.
    `links` are what communication was replayed with; None where all of it was measured.

    `kinds` are the distinct segments with all that was measured of them, `spent` is where planning
    spent its time, `missing` is what the budget left out, and `flops` are those of the model in one
    step, over all devices, of which a device can do `peak_flops` in a second, where that is known.
    Older plans have none of these.
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
    links: Links | None = None
    kinds: tuple[MeasuredKind, ...] = ()
    spent: tuple[Spent, ...] = ()
    missing: tuple[str, ...] = ()
    flops: float | None = None
    peak_flops: float | None = None
    ran: int = 0
    taken_over: int = 0

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
        has = fields.has  # older plans do not have all of it
        return Evidence(
            memory_limit_bytes=fields.optional_integer("memory_limit_bytes"),
            slack_bytes=fields.integer("slack_bytes"),
            seed=fields.integer("seed"),
            seconds=fields.number("seconds"),
            programs=fields.integer("programs"),
            loaded=fields.integer("loaded"),
            start_s=fields.number("start_s") if has("start_s") else 0.0,
            segments=tuple(_segment(entry) for entry in fields.objects("segments")),
            frontier=tuple(
                FrontierPoint(one.number("time_s"), one.integer("memory_bytes"), one.text("splits"))
                for one in fields.objects("frontier")
            ),
            steps=tuple(map(_step, fields.objects("steps"))),
            confirmed=tuple(map(_step, fields.objects("confirmed") if has("confirmed") else ())),
            failed=tuple(
                FailedProgram(entry.text("name"), entry.text("reason"), entry.flag("recorded"))
                for entry in (fields.objects("failed") if has("failed") else ())
            ),
            links=_links(fields) if has("links") else None,
            kinds=read_kinds(fields, "kinds") if has("kinds") else (),
            spent=tuple(
                Spent(entry.text("stage"), entry.number("seconds"))
                for entry in (fields.objects("spent") if has("spent") else ())
            ),
            missing=tuple(fields.texts("missing")) if has("missing") else (),
            flops=_newer(fields, "flops"),
            peak_flops=_newer(fields, "peak_flops"),
            ran=fields.integer("ran") if has("ran") else 0,
            taken_over=fields.integer("taken_over") if has("taken_over") else 0,
        )


def _links(fields: Fields) -> Links | None:
    entry = fields.optional("links")
    if entry is None:
        return None
    pairs = entry.data.get("by_axis")
    texts = isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        for pair in pairs
    )
    if not texts:
        raise entry.wrong("by_axis", "a list of pairs of an axis and the name of a link")
    by_axis = tuple((axis, name) for axis, name in entry.data["by_axis"])
    return Links(by_axis, entry.optional_number("error"), entry.integer("stand_ins"))


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
        exposed_s=_newer(entry, "exposed_s"),
        **(_replayed(entry) if entry.has("provenance") else {}),  # older plans
        sent=read_sent(entry, "sent") if entry.has("sent") else None,  # older plans
        compute_s=_newer(entry, "compute_s"),
    )


def _replayed(entry: Fields) -> dict[str, Any]:
    try:
        provenance = Provenance(entry.text("provenance"))
    except ValueError:
        raise entry.wrong("provenance", f"one of {', '.join(Provenance)}") from None
    return {
        "provenance": provenance,
        "communication_s": entry.optional_number("communication_s"),
        "error_s": entry.number("error_s"),
    }


def _newer(entry: Fields, name: str) -> float | None:
    """Returns a number that older plans do not have."""
    return entry.optional_number(name) if entry.has(name) else None
