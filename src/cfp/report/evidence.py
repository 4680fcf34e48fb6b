"""Why a plan was chosen, in tables: its segments, the full steps measured, time against memory."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import Evidence, FrontierPoint, MeasuredStep, SegmentCost, tied
from cfp.report.text import add_row, line, new_table, range_text, segments_text, time_text

MOST_POINTS = 8  # of the frontier


def show_evidence(plan: Plan, console: Console) -> None:
    """Nothing for a plan that was not planned."""
    evidence = plan.evidence
    if evidence is None:
        return
    for said in evidence_lines(plan, evidence):
        console.print(line(said))
    console.print(_segments_table(evidence.segments))
    if evidence.steps:
        console.print(_steps_table(evidence.steps))
    for step in evidence.steps:
        if step.failed is not None:
            console.print(line(f"{step.name} does not run: {step.failed}"))
    if len(evidence.frontier) > 1:
        console.print(_frontier_table(plan, evidence.frontier))


def evidence_lines(plan: Plan, evidence: Evidence) -> list[str]:
    """What was measured, under which limit, and how far off the prediction was."""
    limit = evidence.memory_limit_bytes
    said = [
        f"{evidence.programs} programs, {evidence.loaded} of them measured before, in "
        f"{evidence.seconds:.0f} s.",
        "Memory limit: none; the devices do not say what they have."
        if limit is None
        else f"Memory limit: {bytes_text(limit)} on each device.",
    ]
    if evidence.slack_bytes:
        said.append(
            f"Memory is searched in steps: a plan that needs {bytes_text(evidence.slack_bytes)} "
            "less than the limit is never missed."
        )
    if evidence.steps and plan.predicted is not None:
        step, predicted = evidence.steps[0], plan.predicted
        off = predicted.time_s / step.measured_s - 1
        said.append(
            f"Measured: {time_text(step.measured_s)} a step (predicted "
            f"{time_text(predicted.time_s)}, {off:+.1%}), {bytes_text(step.memory_bytes)} on each "
            f"device (predicted {bytes_text(predicted.memory_bytes)})."
        )
    return said


def _segments_table(segments: Sequence[SegmentCost]) -> Table:
    """Those that are split alike together; the figures are of one of them."""
    table = new_table(
        "Segments, as predicted",
        "segments",
        "splits, by block",
        "computing",
        "sending",
        "resharding",
        "memory",
    )
    _right(table, 2)
    for at in group_segments(segments):
        one = segments[at[0]]
        add_row(
            table,
            segments_text(at) + (f" (x{len(at)})" if len(at) > 1 else ""),
            one.splits,
            time_text(one.compute_s),
            time_text(one.communication_s),
            time_text(one.resharding_s),
            bytes_text(one.kept_bytes),
        )
    return table


def group_segments(segments: Sequence[SegmentCost]) -> list[list[int]]:
    """Those that are split alike, and cost the same, together."""
    groups: dict[object, list[int]] = {}
    for i, segment in enumerate(segments):
        key = (segment.splits, segment.compute_s, segment.kept_bytes, segment.resharding_s)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _steps_table(steps: Sequence[MeasuredStep]) -> Table:
    """Fastest first. The plan's own is the first of `steps`."""
    table = new_table(
        "Full steps, measured in turn (+-: 95 % sure)",
        "plan",
        "predicted",
        "measured",
        "+-",
        "to the plan",
        "memory",
    )
    _right(table, 1)
    ties = tied(steps)
    ran = sorted((s for s in steps if s.failed is None), key=lambda step: step.measured_s)
    table.columns[0].no_wrap = True
    for step in ran:
        name = f"{step.name}, chosen" if step is steps[0] else step.name
        ratio = f"{step.measured_s / steps[0].measured_s:.2f}x"
        add_row(
            table,
            name,
            "-" if step.predicted_s is None else time_text(step.predicted_s),
            time_text(step.measured_s),
            range_text(step.measured_s, step.low_s, step.high_s),
            f"{ratio} (tie)" if step in ties else ratio,
            bytes_text(step.memory_bytes),
        )
    return table


def _frontier_table(plan: Plan, frontier: Sequence[FrontierPoint]) -> Table:
    """The ends, and points spread over the memory between them."""
    table = new_table(
        "The fastest plans for their memory, as predicted", "memory", "time", "splits, by segment"
    )
    for column in table.columns[:2]:
        column.justify = "right"
        column.no_wrap = True
    for point in _spread(frontier):
        mine = plan.predicted is not None and point.memory_bytes == plan.predicted.memory_bytes
        splits = f"{point.splits} (this plan)" if mine else point.splits
        add_row(table, bytes_text(point.memory_bytes), time_text(point.time_s), splits)
    return table


def _spread(frontier: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    if len(frontier) <= MOST_POINTS:
        return list(frontier)
    low, high = frontier[0].memory_bytes, frontier[-1].memory_bytes
    wanted = [low + (high - low) * i / (MOST_POINTS - 1) for i in range(MOST_POINTS)]
    near = [min(frontier, key=lambda p: abs(p.memory_bytes - at)) for at in wanted]
    return list(dict.fromkeys(near))


def _right(table: Table, first: int) -> None:
    for column in table.columns[first:]:
        column.justify = "right"
        column.no_wrap = True
