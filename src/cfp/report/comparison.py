"""Plans measured against each other, as a table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from cfp.compare import Comparison
from cfp.memory_size import bytes_text
from cfp.report.text import add_row, new_table, range_text, time_text


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Fastest first."""
    table = new_table(
        f"Full steps, {comparison.rounds} rounds in turn (+-: 95 % sure)",
        "plan",
        "median",
        "+-",
        "to the fastest",
        "computing",
        "sending",
        "memory",
    )
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    labels = _labels([one.name for one in comparison.plans])
    for one, label in zip(comparison.plans, labels, strict=True):
        if one.failed is not None:
            continue
        parts = [
            "-" if seconds is None else time_text(seconds)
            for seconds in (one.compute_s, one.communication_s)
        ]
        fastest = one is comparison.plans[0]
        tie = " tie" if one.ties and not fastest else ""
        add_row(
            table,
            label,
            time_text(one.time_s),
            range_text(one.time_s, one.low_s, one.high_s),
            "1" if fastest else f"{one.ratio:.3f} ({one.ratio_low:.3f}-{one.ratio_high:.3f}){tie}",
            *parts,
            bytes_text(one.memory_bytes),
        )
    console.print(table)
    for one in comparison.plans:
        if one.failed is not None:
            console.print(f"{one.name} does not run: {one.failed}", markup=False, highlight=False)


def _labels(names: Sequence[str]) -> list[str]:
    """Plan files without their folders, where that tells them apart: columns are narrow."""
    short = [os.path.basename(name) or name for name in names]
    often = Counter(short)
    return [name if often[s] > 1 else s for name, s in zip(names, short, strict=True)]
