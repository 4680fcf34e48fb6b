"""Why a plan was chosen, in tables: its segments, the full steps measured, time against memory."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cfp.blocks import legend
from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.choice import segments_text
from cfp.plan.evidence import Evidence, FailedProgram, FrontierPoint, SegmentCost
from cfp.profile.measure.measurement import Provenance
from cfp.report.steps import StepRow, how_known, measured_steps, step_rows
from cfp.report.text import (
    add_row,
    line,
    new_table,
    part_text,
    time_text,
)

MOST_POINTS = 8  # rows of the frontier's table, so that it fits a screen
COLUMNS = "+-: 95 % interval; ratio and verdict: against the chosen plan"
DIGITS = 9  # decimals of seconds: below a nanosecond, times differ only by rounding


def show_evidence(plan: Plan, console: Console) -> None:
    """Prints why a plan was chosen; nothing for a plan that the planner did not make."""
    evidence = plan.evidence
    if evidence is None:
        return
    for said in evidence_lines(plan, evidence):
        console.print(line(said))
    console.print(_segments_table(evidence))
    console.print(line(splits_legend(evidence)))
    for title, steps in measured_steps(evidence):
        rows = step_rows(steps)
        if any(row.why_not is None for row in rows):
            console.print(_steps_table(f"{title} ({COLUMNS})", how_known(evidence), rows))
        for row in rows:
            if row.why_not is not None:
                console.print(line(f"{row.name} {row.why_not}"))
    if len(evidence.frontier) > 1:
        console.print(_frontier_table(plan, evidence.frontier))


def evidence_lines(plan: Plan, evidence: Evidence) -> list[str]:
    """Says what was measured, under which limit, and how far off the prediction was."""
    limit = evidence.memory_limit_bytes
    said = [
        f"{evidence.programs} programs, {evidence.loaded} of them measured before, in "
        f"{evidence.seconds:.0f} s.",
        "Memory limit: none, because the devices do not say how much they have."
        if limit is None
        else f"Memory limit: {bytes_text(limit)} on each device.",
    ]
    if evidence.slack_bytes:
        said.append(
            "The search rounds memory up: no plan that needs "
            f"{bytes_text(evidence.slack_bytes)} less than the limit is missed."
        )
    said += _replayed_lines(plan, evidence)
    step, predicted = evidence.own, plan.predicted
    if step is not None and predicted is not None:
        off = predicted.time_s / step.time_s - 1
        fresh = "" if step in evidence.confirmed else ", in the rounds that decided the choice"
        said.append(
            f"{step.provenance.capitalize()}: {time_text(step.time_s)} a step{fresh} (predicted "
            f"{time_text(predicted.time_s)}, {off:+.1%}), {bytes_text(step.memory_bytes or 0)} on "
            f"each device (predicted {bytes_text(predicted.memory_bytes)})."
        )
        if step.communication_s is not None and step.exposed_s is not None:
            said.append(
                f"Communication takes {time_text(step.communication_s)} of the replayed step, and "
                f"{time_text(step.exposed_s)} of that has nothing computed beside it. The error of "
                f"the links may change the step by {time_text(step.error_s)}."
            )
    return [*said, *_failed_lines(evidence.failed)]


def _replayed_lines(plan: Plan, evidence: Evidence) -> list[str]:
    """Says what was measured of a mesh that is not there, and what was not."""
    links = evidence.links
    if links is None:
        return []
    return [
        f"Nothing ran on this mesh: {links.stand_ins} {plan.environment.device_kind} stood in for "
        f"its {plan.mesh.size} devices. Computing and memory were measured; communication was not, "
        f"and is replayed with links: {links.show()}."
    ]


def _failed_lines(failed: Sequence[FailedProgram]) -> list[str]:
    """Says what does not run, those of one reason together, and how to have it tried again."""
    by_reason: dict[str, list[str]] = {}
    for one in failed:
        by_reason.setdefault(one.reason, []).append(one.name)
    said = []
    for reason, names in by_reason.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        said.append(f"Left out because it does not run: {names[0]}{more} ({reason}).")
    recorded = sum(one.recorded for one in failed)
    if recorded:
        said.append(
            f"{recorded} failure{'s are' if recorded > 1 else ' is'} recorded and not tried again: "
            "`cfp cache prune --failed` forgets them."
        )
    return said


def splits_legend(evidence: Evidence) -> str:
    """Returns what the words for splits in the tables mean."""
    segments = [segment.splits for segment in evidence.segments]
    return legend(segments + [point.splits for point in evidence.frontier])


def segment_rows(evidence: Evidence) -> list[tuple[str, SegmentCost]]:
    """Returns the rows that the predicted time consists of: what the segments that are split alike
    cost together, and what starting the step takes. They add up to the prediction."""
    groups: dict[object, list[int]] = {}
    for i, one in enumerate(evidence.segments):
        parts_s = (one.segment_s, one.compute_s, one.communication_s, one.resharding_s)
        near = [None if part_s is None else round(part_s, DIGITS) for part_s in parts_s]
        groups.setdefault((one.splits, one.kept_bytes, *near), []).append(i)
    rows = []
    for at in groups.values():
        where = segments_text(at) + (f" (x{len(at)})" if len(at) > 1 else "")
        rows.append((where, _together([evidence.segments[i] for i in at])))
    start_s = evidence.start_s
    if start_s:  # older plans do not say
        rows.append(("", SegmentCost("starting the step", start_s, start_s, 0.0, 0.0, 0, 0)))
    return rows


def _together(some: Sequence[SegmentCost]) -> SegmentCost:
    """Returns what segments that are split alike cost together."""
    return SegmentCost(
        splits=some[0].splits,
        segment_s=sum(one.segment_s for one in some),
        compute_s=_sum([one.compute_s for one in some]),
        communication_s=_sum([one.communication_s for one in some]),
        resharding_s=sum(one.resharding_s for one in some),
        kept_bytes=sum(one.kept_bytes for one in some),
        scratch_bytes=max(one.scratch_bytes for one in some),
    )


def _sum(parts_s: Sequence[float | None]) -> float | None:
    """Returns the sum of the parts; None where some were not measured."""
    known = [part_s for part_s in parts_s if part_s is not None]
    return sum(known) if len(known) == len(parts_s) else None


def _segments_table(evidence: Evidence) -> Table:
    table = new_table(
        "Predicted cost of the segments (a row is all that are split alike)",
        "segments",
        "splits, by block",
        "computing",
        "sending",
        "resharding",
        "memory",
    )
    _right(table, 2)
    for where, cost in segment_rows(evidence):
        add_row(
            table,
            where,
            cost.splits,
            part_text(cost.compute_s),
            part_text(cost.communication_s),
            time_text(cost.resharding_s),
            bytes_text(cost.kept_bytes),
        )
    return table


def _steps_table(title: str, how: Provenance, rows: Sequence[StepRow]) -> Table:
    columns = ("predicted", str(how), "+-", "memory", "ratio", "verdict")
    table = new_table(title, "plan", *columns)
    _right(table, 1)
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    for row in rows:
        if row.why_not is None:
            figures = (row.predicted, row.measured, row.spread, row.memory)
            add_row(table, row.name, *figures, row.ratio, row.verdict)
    return table


def _frontier_table(plan: Plan, frontier: Sequence[FrontierPoint]) -> Table:
    """Returns a table of both ends of the frontier and points spread between them."""
    table = new_table(
        "The fastest predicted plan for each amount of memory",
        "memory",
        "time",
        "splits, by segment",
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
