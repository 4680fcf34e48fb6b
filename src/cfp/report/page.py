"""A plan and why it was chosen, as one page to read or to send: no scripts, nothing to load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jinja2

from cfp.errors import CfpError
from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import Evidence, FrontierPoint
from cfp.planning.scaling import Scaled
from cfp.report.evidence import (
    evidence_lines,
    how_known,
    measured_steps,
    segment_rows,
    splits_legend,
    step_rows,
)
from cfp.report.scaling import scaling_rows
from cfp.report.text import shape_text, spec_text, time_text
from cfp.writing import write_whole

WIDTH, HEIGHT, EDGE = (
    560.0,
    220.0,
    8.0,
)  # the frontier's drawing in pixels; its points keep off the edge


def write_page(plan: Plan, path: str | os.PathLike[str], scaling: Sequence[Scaled] = ()) -> None:
    """Writes the page about a plan that was planned; `scaling` are plans of other numbers of
    devices, to show beside it."""
    write_whole(path, render_page(plan, scaling), "report")


def render_page(plan: Plan, scaling: Sequence[Scaled] = ()) -> str:
    evidence = plan.evidence
    if evidence is None:
        raise CfpError(f"The plan `{plan.name}` was not planned by cfp: there is no report of it.")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cfp.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    names = plan.mesh.axis_names
    return environment.get_template("page.html").render(
        plan=plan,
        mesh=", ".join(f"{name}={size}" for name, size in plan.mesh.shape.items()),
        environment=plan.environment,
        lines=evidence_lines(plan, evidence),
        how=how_known(evidence),
        segments=_segments(evidence),
        untold=any(segment.communication_s is None for segment in evidence.segments),
        legend=splits_legend(evidence),
        measured=[(title, step_rows(steps)) for title, steps in measured_steps(evidence)],
        frontier=_frontier(plan, evidence),
        arguments=[
            {"path": t.path, "shape": shape_text(t.shape), "spec": spec_text(t.layout, names)}
            for t in plan.arguments
        ],
        evidence=evidence,
        scaling=scaling_rows(scaling),
        speeds=_speeds(scaling),
    )


def _speeds(scaling: Sequence[Scaled]) -> dict[str, Any] | None:
    """Returns the drawing of the steps per second of the best plans against the number of devices,
    beside what the same speed of each device would give."""
    best = [row for row in scaling if row.best]
    if len(best) < 2:
        return None
    most = best[-1].devices
    ideal = most / best[0].devices / best[0].time_s
    top = max(ideal, *(1 / row.time_s for row in best))

    def place(devices: float, per_s: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * devices / most
        return f"{x:.1f},{HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * per_s / top:.1f}"

    return {
        "size": f"{WIDTH:g} {HEIGHT:g}",
        "line": " ".join(place(row.devices, 1 / row.time_s) for row in best),
        "ideal": f"{place(0, 0)} {place(most, ideal)}",
        "top": f"{top:.3g} steps/s",
        "most": f"{most} devices",
    }


def _segments(evidence: Evidence) -> list[dict[str, Any]]:
    """Returns the rows of the predicted time, with bars to scale."""
    rows = segment_rows(evidence)
    longest = max((cost.time_s for _, cost in rows), default=0.0) or 1.0
    found = []
    for where, cost in rows:
        told = cost.compute_s is not None and cost.communication_s is not None
        parts = {
            "compute": cost.compute_s or 0.0,
            "talk": cost.communication_s or 0.0,
            "whole": 0.0 if told else cost.segment_s,
            "reshard": cost.resharding_s,
        }
        found.append(
            {
                "where": where,
                "splits": cost.splits,
                "bars": [(kind, 100 * seconds / longest) for kind, seconds in parts.items()],
                "time": f"{cost.time_s * 1e3:.2f}",
                "memory": bytes_text(cost.kept_bytes) if cost.kept_bytes else "",
            }
        )
    return found


def _frontier(plan: Plan, evidence: Evidence) -> dict[str, Any] | None:
    points = evidence.frontier
    if len(points) < 2:
        return None
    low, high = points[0].memory_bytes, points[-1].memory_bytes
    fast, slow = min(p.time_s for p in points), max(p.time_s for p in points)

    def place(memory_bytes: float, time_s: float) -> tuple[float, float]:
        x = EDGE + (WIDTH - 2 * EDGE) * (memory_bytes - low) / max(high - low, 1)
        y = HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (time_s - fast) / max(slow - fast, 1e-12)
        return round(x, 1), round(y, 1)

    def said(point: FrontierPoint) -> str:
        return f"{bytes_text(point.memory_bytes)}, {time_text(point.time_s)}: {point.splits}"

    placed = [(*place(p.memory_bytes, p.time_s), said(p)) for p in points]
    mine = plan.predicted
    inside = mine is not None and low <= mine.memory_bytes <= high and fast <= mine.time_s <= slow
    return {
        "size": f"{WIDTH:g} {HEIGHT:g}",
        "points": placed,
        "line": " ".join(f"{x},{y}" for x, y, _ in placed),
        "mine": place(mine.memory_bytes, mine.time_s) if mine is not None and inside else None,
        "low": bytes_text(low),
        "high": bytes_text(high),
        "fast": time_text(fast),
        "slow": time_text(slow),
    }
