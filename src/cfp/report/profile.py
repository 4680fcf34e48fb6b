"""The tables of `cfp profile`: what each way to split a segment costs, and every resharding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from cfp.blocks import legend
from cfp.memory_size import bytes_text
from cfp.profile import Boundary, Cost, Option, Profile, SegmentProfile
from cfp.report.text import (
    NOT_MEASURED,
    WHOLE_LEGEND,
    add_row,
    line,
    new_table,
    part_text,
    shape_text,
    spec_text,
    time_text,
)


def show_profile(profile: Profile, console: Console, names: Sequence[str], top: int = 20) -> None:
    """Prints the `top` options of every segment, all reshardings, and what was not measured."""
    for segment in profile.segments:
        console.print(_segment_table(segment, top))
        for option, reason in segment.failed.items():
            console.print(line(f"does not run: {segment.kind.show(option)}: {reason}"))
    options = [s.kind.show(option) for s in profile.segments for option in s.ranked()[:top]]
    console.print(line(legend(options)))
    if profile.reshardings:
        console.print(_boundary_table(profile, names))
        console.print(line(WHOLE_LEGEND))
    for said in _foot(profile):
        console.print(line(said))


def _segment_table(segment: SegmentProfile, top: int) -> Table:
    kind = segment.kind
    ranked = segment.ranked()
    times = "once" if kind.times == 1 else f"{kind.times} times"
    shown = f", the fastest {top}" if len(ranked) > top else ""
    table = new_table(
        f"Segment {kind.index} ({kind.name}), {times} a step: "
        f"{segment.ways} of {kind.space} ways to split it measured{shown}",
        "splits",
        "time",
        "+-",
        "computing",
        "sending",
        "waiting",
        "memory",
        "kept",
    )
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for option in ranked[:top]:
        cost = segment.costs[option]
        add_row(
            table,
            kind.show(option),
            (">= " if cost.rough else "") + time_text(cost.time_s),
            time_text(cost.spread_s),
            *_shares(cost),
            bytes_text(cost.memory.total_bytes),
            bytes_text(cost.memory.kept_bytes),
        )
    return table


def _shares(cost: Cost) -> tuple[str, str, str]:
    if cost.shares is None:
        return NOT_MEASURED, "", ""
    shares = cost.shares
    return time_text(shares.compute_s), time_text(shares.transfer_s), time_text(shares.waiting_s)


def _boundary_table(profile: Profile, names: Sequence[str]) -> Table:
    """Returns a table of every pair of layouts that differ at a boundary, forward and backward;
    boundaries with the same tensor and layouts share their rows."""
    table = new_table("Reshardings between segments", "boundaries", "tensor", "from", "to", "time")
    table.columns[4].justify = "right"
    groups: dict[tuple[Any, ...], list[Boundary]] = {}
    for boundary in profile.boundaries:
        pairs = sorted(_pairs(profile, boundary), key=str)
        groups.setdefault((boundary.shape, boundary.dtype, *pairs), []).append(boundary)
    for (_, _, *found), alike in groups.items():
        ends = ", ".join(f"{b.what} {b.source.kind} -> {b.target.kind}" for b in alike)
        tensor = f"{alike[0].dtype}{shape_text(alike[0].shape)}"
        for source, target, seconds in found:
            specs = spec_text(source, names), spec_text(target, names)
            add_row(table, ends, tensor, *specs, part_text(seconds))
            ends = tensor = ""
        table.add_section()
    return table


def _pairs(profile: Profile, boundary: Boundary) -> list[tuple[Any, Any, float | None]]:
    """Returns (layout before, layout after, seconds) once for every pair of layouts."""
    left, right = (profile.segments[end.kind] for end in (boundary.source, boundary.target))
    found: dict[tuple[Any, Any], float | None] = {}
    sources = {boundary.source.layout(left.layouts[option]): option for option in left.costs}
    targets = {boundary.target.layout(right.layouts[option]): option for option in right.costs}
    for source in sources.values():
        for target in targets.values():
            needed = boundary.resharding(left.layouts[source], right.layouts[target])
            if needed is not None:
                key = (needed.source, needed.target)
                found[key] = profile.resharding_s(boundary, source, target)
    return [(source, target, seconds) for (source, target), seconds in found.items()]


def _foot(profile: Profile) -> list[str]:
    measured = (
        f"{profile.compiled} programs compiled ({time_text(profile.compile_s)}) and "
        f"{profile.loaded} measurements found in the store, in {time_text(profile.seconds)}."
    )
    start = (
        f"Starting a program takes {time_text(profile.base_s)} and "
        f"{time_text(profile.each_s)} per argument, which these times do not include."
    )
    lines = [f"Measured on {profile.machine.show()}.", measured, start]
    if any(cost.rough for segment in profile.segments for cost in segment.costs.values()):
        lines.append(">= marks a program that was stopped early, far behind the fastest.")
    if profile.missing:
        lines.append(f"The budget ended before: {'; '.join(profile.missing)}.")
    return lines


def profile_to_json(profile: Profile) -> dict[str, Any]:
    return {
        "machine": profile.machine.to_json(),
        "segments": [_segment_json(segment) for segment in profile.segments],
        "boundaries": [_boundary_json(profile, boundary) for boundary in profile.boundaries],
        "start_s": profile.base_s,
        "start_per_argument_s": profile.each_s,
        "compiled": profile.compiled,
        "compile_s": profile.compile_s,
        "loaded": profile.loaded,
        "seconds": profile.seconds,
        "complete": profile.complete,
        "missing": list(profile.missing),
    }


def _segment_json(segment: SegmentProfile) -> dict[str, Any]:
    kind = segment.kind
    return {
        "kind": kind.index,
        "name": kind.name,
        "times": kind.times,
        "space": kind.space,
        "finished": segment.finished,
        "options": [_option_json(segment, option) for option in segment.ranked()],
        "failed": [
            {"splits": kind.show(option), "reason": reason}
            for option, reason in segment.failed.items()
        ],
    }


def _option_json(segment: SegmentProfile, option: Option) -> dict[str, Any]:
    cost = segment.costs[option]
    shares = cost.shares
    return {
        "splits": segment.kind.show(option),
        "combo": list(option.combo),
        "state": option.state.value,
        "time_s": cost.time_s,
        "at_least_s": cost.at_least_s,
        "spread_s": cost.spread_s,
        "compute_s": None if shares is None else shares.compute_s,
        "transfer_s": None if shares is None else shares.transfer_s,
        "waiting_s": None if shares is None else shares.waiting_s,
        "rough": cost.rough,
        "memory": {name: getattr(cost.memory, name) for name in cost.memory.__slots__},
    }


def _boundary_json(profile: Profile, boundary: Boundary) -> dict[str, Any]:
    times = sum(c.times for c in profile.crossings if c.boundary == boundary)
    return {
        "source": boundary.source.kind,
        "target": boundary.target.kind,
        "what": boundary.what,
        "shape": list(boundary.shape),
        "dtype": boundary.dtype,
        "times": times,
        "reshardings": [
            {"source": list(source), "target": list(target), "time_s": seconds}
            for source, target, seconds in _pairs(profile, boundary)
        ],
    }
