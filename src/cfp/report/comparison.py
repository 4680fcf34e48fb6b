"""Plans measured against each other, as a table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from cfp.memory_size import bytes_text
from cfp.planning.compare import Comparison
from cfp.report.text import add_row, line, new_table, part_text, range_text, time_text


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the measured plans, fastest first, and then those that do not run."""
    replayed = "replayed, " if comparison.links else ""
    table = new_table(
        f"Full steps, {replayed}{comparison.rounds} rounds of every plan (+-: 95 % interval)",
        "plan",
        "median",
        "+-",
        "ratio to the fastest",
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
        parts = map(part_text, (one.compute_s, one.communication_s))
        fastest = one is comparison.plans[0]
        between = ""
        if one.ratio_low is not None and one.ratio_high is not None:
            between = f" ({one.ratio_low:.3f}-{one.ratio_high:.3f})"
        add_row(
            table,
            label,
            time_text(one.time_s),
            range_text(one.time_s, one.low_s, one.high_s),
            "1" if fastest else f"{one.ratio:.3f}{between} {one.verdict}",
            *parts,
            bytes_text(one.memory_bytes),
        )
    console.print(table)
    for said in _predictions(comparison, labels):
        console.print(line(said))
    if comparison.links is not None:
        console.print(
            line(
                "Nothing ran on this mesh: computing was measured on devices here, "
                f"{comparison.links.stand_ins} standing in, and communication is replayed with "
                f"links: {comparison.links.show()}."
            )
        )
    for one in comparison.plans:
        if one.failed is not None:
            console.print(f"{one.name} does not run: {one.failed}", markup=False, highlight=False)


def _predictions(comparison: Comparison, labels: Sequence[str]) -> list[str]:
    """Says of every plan that predicted its time how far that was off."""
    return [
        f"{label}: predicted {time_text(one.predicted_s)} "
        f"({one.predicted_s / one.time_s - 1:+.1%}), {one.provenance} {time_text(one.time_s)}."
        for one, label in zip(comparison.plans, labels, strict=True)
        if one.failed is None and one.predicted_s is not None and one.time_s > 0
    ]


def _labels(names: Sequence[str]) -> list[str]:
    """Returns short names: plan files without their folders where those are not needed."""
    short = [os.path.basename(name) or name for name in names]
    often = Counter(short)
    return [name if often[s] > 1 else s for name, s in zip(names, short, strict=True)]
