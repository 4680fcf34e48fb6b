"""Full steps under plans in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cfp.memory_size import bytes_text
from cfp.plan.evidence import Evidence, MeasuredStep
from cfp.profile.measure.measurement import Provenance
from cfp.report.text import range_text, time_text


def how_known(evidence: Evidence) -> Provenance:
    """Returns how the times of full steps came to be known."""
    return Provenance.MEASURED if evidence.links is None else Provenance.REPLAYED


@dataclass(frozen=True, slots=True)
class StepRow:
    """A measured step in words; one that was not measured has `why_not` instead of figures."""

    name: str
    chosen: bool
    predicted: str = ""
    measured: str = ""
    spread: str = ""
    ratio: str = ""
    verdict: str = ""
    memory: str = ""
    why_not: str | None = None


def measured_steps(evidence: Evidence) -> list[tuple[str, Sequence[MeasuredStep]]]:
    """Returns the sets of full steps that were measured or replayed, each with a title."""
    fresh = " on fresh rounds" if evidence.links is None else ", with the templates"
    found = (
        (f"Full steps {how_known(evidence)}{fresh}", evidence.confirmed),
        ("Full steps that decided the choice", evidence.steps),
    )
    return [(title, steps) for title, steps in found if steps]


def all_steps(evidence: Evidence) -> list[MeasuredStep]:
    """Returns every full step once, with what fresh rounds say of it where there are any."""
    found = {step.name: step for step in evidence.steps}
    for step in evidence.confirmed:
        if step.ran or step.name not in found:
            found[step.name] = step
    return list(found.values())


def own_name(step: MeasuredStep, evidence: Evidence) -> str:
    """Returns the name of a step; that of the chosen one says so."""
    own = evidence.own
    return "this plan" if own is not None and step.name == own.name else step.name


def prediction_error(step: MeasuredStep) -> str | None:
    """Returns `+3.1 %`: how far the prediction was above the measured time; None without both."""
    if not step.ran or step.predicted_s is None:
        return None
    return f"{step.predicted_s / step.time_s - 1:+.1%}"


def step_rows(steps: Sequence[MeasuredStep]) -> list[StepRow]:
    """Returns the rows, fastest first and unmeasured last; `steps[0]` is the plan's own."""
    own = steps[0]
    rows = []
    for step in sorted(steps, key=lambda step: (not step.ran, step.measured_s or 0.0)):
        name = f"{step.name}, chosen" if step is own else step.name
        if step.ran and own.ran and step.provenance is not own.provenance:
            name = f"{name} ({step.provenance})"
        if not step.ran:
            rows.append(StepRow(name, step is own, why_not=step.why_not()))
            continue
        assert step.low_s is not None
        assert step.high_s is not None
        rows.append(
            StepRow(
                name,
                step is own,
                "-" if step.predicted_s is None else time_text(step.predicted_s),
                time_text(step.time_s),
                range_text(step.time_s, step.low_s, step.high_s),
                *_beside(step, own),
                bytes_text(step.memory_bytes or 0),
            )
        )
    return rows


def _beside(step: MeasuredStep, own: MeasuredStep) -> tuple[str, str]:
    """Returns `1.32x`, `slower`, by the rounds that both ran in; the ratio alone where they share
    none."""
    if step is own:
        return "1", ""
    if not own.ran:
        return "-", ""
    found = step.beside(own)
    if found.ratio is None:
        return f"{step.time_s / own.time_s:.2f}x", ""
    return f"{found.ratio:.2f}x", str(found.verdict)
