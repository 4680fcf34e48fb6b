"""Links as people read them, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from cfp.links import Link
from cfp.report.text import add_row, line, new_table, time_text

LISTED = "all-reduce"  # the collective that the list shows, of the largest group it has
SMALL, LARGE = 2**20, 2**28  # 1 and 256 MiB: an activation, a model's state


def show_links(links: Sequence[Link], console: Console) -> None:
    """Prints a line for every link: what it joins, and how fast its all-reduce is."""
    table = new_table("Links", "link", "joins", "error", "devices", "1 KiB", "1 MiB", "256 MiB")
    for link in links:
        group, curve = max(link.tables[LISTED].items())
        error = "unknown" if link.error is None else f"{100 * link.error.median:.1f} %"
        speeds = [f"{size / curve.time_s(size) / 1e9:.3g} GB/s" for size in (SMALL, LARGE)]
        joins = "machines" if link.scope == "network" else link.device or "any devices"
        add_row(table, link.name, joins, error, str(group), time_text(curve.time_s(1024)), *speeds)
    console.print(table)
    console.print(
        line(
            f"The last columns are of an {LISTED} over so many devices: its time, and the bytes of "
            "the tensor by time. error: the median, relative, to what the link was made of."
        )
    )


def link_to_json(link: Link) -> dict[str, Any]:
    error = link.error
    return {
        "name": link.name,
        "scope": link.scope,
        "device": link.device,
        "source": link.source,
        "error": None if error is None else {"median": error.median, "worst": error.worst},
        "tables": {
            kind: {
                str(group): {"bytes": [*curve.bytes], "time_s": [*curve.times_s]}
                for group, curve in curves.items()
            }
            for kind, curves in link.tables.items()
        },
    }
