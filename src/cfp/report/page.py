"""A plan and why it was chosen, as one page to read or to send: no scripts, nothing to load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from cfp.errors import CfpError
from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import Evidence, FrontierPoint, MeasuredStep, SegmentCost, tied
from cfp.report.evidence import evidence_lines, group_segments
from cfp.report.text import range_text, segments_text, shape_text, spec_text, time_text

LEFT, RIGHT, TOP, BOTTOM = 60.0, 620.0, 20.0, 222.0  # of the frontier's drawing


def write_page(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Of a plan that was planned."""
    try:
        Path(path).write_text(render_page(plan), encoding="utf-8")
    except OSError as error:
        raise CfpError(f"Cannot write the report to {path}: {error.strerror}.") from error


def render_page(plan: Plan) -> str:
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
        segments=_segments(evidence.segments),
        steps=_steps(evidence.steps),
        frontier=_frontier(plan, evidence),
        arguments=[
            {"path": t.path, "shape": shape_text(t.shape), "spec": spec_text(t.layout, names)}
            for t in plan.arguments
        ],
        evidence=evidence,
    )


def _segments(segments: Sequence[SegmentCost]) -> list[dict[str, Any]]:
    longest = max((segment.time_s for segment in segments), default=0.0) or 1.0
    rows = []
    for at in group_segments(segments):
        one = segments[at[0]]
        parts = {
            "compute": one.compute_s,
            "talk": one.communication_s,
            "reshard": one.resharding_s,
        }
        rows.append(
            {
                "where": segments_text(at) + (f" (x{len(at)})" if len(at) > 1 else ""),
                "splits": one.splits,
                "bars": [(kind, 100 * seconds / longest) for kind, seconds in parts.items()],
                "time": f"{one.time_s * 1e3:.2f}",
                "memory": bytes_text(one.kept_bytes),
            }
        )
    return rows


def _steps(steps: Sequence[MeasuredStep]) -> list[dict[str, Any]]:
    """Fastest first, those that do not run last."""
    if not steps:
        return []
    ties = tied(steps)
    ranked = sorted(steps, key=lambda step: (step.failed is not None, step.measured_s))
    return [
        {
            "name": f"{step.name}, chosen" if step is steps[0] else step.name,
            "chosen": step is steps[0],
            "failed": step.failed,
            "predicted": "-" if step.predicted_s is None else time_text(step.predicted_s),
            "measured": time_text(step.measured_s),
            "range": "" if step.failed else range_text(step.measured_s, step.low_s, step.high_s),
            "ratio": f"{step.measured_s / steps[0].measured_s:.2f}x"
            + (" (tie)" if step in ties else ""),
            "memory": bytes_text(step.memory_bytes),
        }
        for step in ranked
    ]


def _frontier(plan: Plan, evidence: Evidence) -> dict[str, Any] | None:
    points = evidence.frontier
    if len(points) < 2:
        return None
    low, high = points[0].memory_bytes, points[-1].memory_bytes
    fast, slow = min(p.time_s for p in points), max(p.time_s for p in points)

    def place(memory_bytes: float, time_s: float) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * (memory_bytes - low) / max(high - low, 1)
        y = BOTTOM - (BOTTOM - TOP) * (time_s - fast) / max(slow - fast, 1e-12)
        return round(x, 1), round(y, 1)

    def said(point: FrontierPoint) -> str:
        return f"{bytes_text(point.memory_bytes)}, {time_text(point.time_s)}: {point.splits}"

    placed = [(*place(p.memory_bytes, p.time_s), said(p)) for p in points]
    mine = plan.predicted
    inside = mine is not None and low <= mine.memory_bytes <= high and fast <= mine.time_s <= slow
    return {
        "points": placed,
        "line": " ".join(f"{x},{y}" for x, y, _ in placed),
        "mine": place(mine.memory_bytes, mine.time_s) if mine is not None and inside else None,
        "low": bytes_text(low),
        "high": bytes_text(high),
        "fast": time_text(fast),
        "slow": time_text(slow),
    }
