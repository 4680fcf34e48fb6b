"""What `cfp plan` prints: the verdict, then the tables behind it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from cfp.plan import Plan
from cfp.report.evidence import show_evidence
from cfp.report.plan import show_head
from cfp.report.text import add_row, line, new_table, time_text
from cfp.report.verdict import verdict_lines


def show_planned(plan: Plan, console: Console, meshes: Sequence[tuple[Plan, float]] = ()) -> None:
    """Prints the plan, first in five lines that need no other; `meshes` are the plans of all meshes
    that were tried, each with the seconds of a step."""
    for number, said in enumerate(verdict_lines(plan)):
        console.print(line(said), style="bold" if number == 0 else None)
    console.print()
    show_head(plan, console, None)
    show_evidence(plan, console)
    if len(meshes) > 1:
        table = new_table("Meshes tried", "mesh", "step", "ratio to the fastest")
        ranked = sorted(meshes, key=lambda found: found[1])
        for one, seconds in ranked:
            shape = "x".join(map(str, one.mesh_shape))
            add_row(table, shape, time_text(seconds), f"{seconds / ranked[0][1]:.2f}x")
        console.print(table)
