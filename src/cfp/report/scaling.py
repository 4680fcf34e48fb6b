"""How many devices: the best plan of every mesh, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from cfp.memory_size import bytes_text
from cfp.planning.scaling import Programs, Scaled, all_programs
from cfp.report.text import add_row, line, new_table, time_text


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """A row of the table, in words; what is not known is a dash."""

    devices: str
    mesh: str
    time: str
    provenance: str
    tokens: str
    mfu: str
    memory: str
    efficiency: str
    best: bool


def scaling_rows(rows: Sequence[Scaled]) -> list[ScalingRow]:
    return [
        ScalingRow(
            str(row.devices),
            "x".join(map(str, row.mesh)) + (", best" if row.best else ""),
            time_text(row.time_s),
            str(row.provenance),
            "-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
            "-" if row.mfu is None else f"{row.mfu:.1%}",
            bytes_text(row.memory_bytes),
            f"{row.efficiency:.0%}",
            row.best,
        )
        for row in rows
    ]


def show_scaling(rows: Sequence[Scaled], console: Console) -> None:
    """Prints the best plan of every mesh, by number of devices and time."""
    columns = ("step", "known by", "tokens/s", "MFU", "memory", "efficiency")
    table = new_table("How many devices", "devices", "mesh", *columns)
    for at, column in enumerate(table.columns):
        column.justify = "left" if at in (1, 3) else "right"
        column.no_wrap = True
    for row in scaling_rows(rows):
        figures = (row.time, row.provenance, row.tokens, row.mfu, row.memory, row.efficiency)
        add_row(table, row.devices, row.mesh, *figures)
    console.print(table)
    first = rows[0].devices
    console.print(
        line(
            f"efficiency: how much of its speed among {first} devices each device keeps; MFU: the "
            "model's FLOPs over the time and the peak of the devices, where that is known here."
        )
    )
    console.print(line(programs_text(all_programs(rows))))


def programs_text(programs: Programs) -> str:
    """Says what planning for all meshes took, in programs."""
    return (
        f"programs: {programs.compiled} were compiled and {programs.ran} ran; "
        f"{programs.taken_over} did not have to run, because one of another mesh or option has the "
        "same kernels; "
        f"{programs.loaded} were found in the store."
    )
