"""What `cfp plan` prints: the plan in a few lines, and why."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from cfp.plan import Plan
from cfp.report.evidence import show_evidence
from cfp.report.plan import show_head
from cfp.report.text import add_row, new_table, time_text


def show_planned(plan: Plan, console: Console, meshes: Sequence[tuple[Plan, float]] = ()) -> None:
    """Prints the plan; `meshes` are the plans of all meshes that were tried, each with the seconds
    of a step."""
    show_head(plan, console, None)
    show_evidence(plan, console)
    if len(meshes) > 1:
        table = new_table("Meshes tried", "mesh", "step", "ratio to the fastest")
        ranked = sorted(meshes, key=lambda found: found[1])
        for one, seconds in ranked:
            shape = "x".join(map(str, one.mesh_shape))
            add_row(table, shape, time_text(seconds), f"{seconds / ranked[0][1]:.2f}x")
        console.print(table)
