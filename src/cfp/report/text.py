"""Text and tables, as all reports write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from cfp.layouts import Layout, to_spec


def line(text: str) -> Text:
    """As text, whatever it holds: no markup, and nothing that steers a terminal."""
    return Text("".join(c if c.isprintable() else "?" for c in text))


def new_table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    for column in columns:
        right = column in ("times", "bytes", "each", "per step")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    return table


def add_row(table: Table, *cells: str) -> None:
    table.add_row(*map(line, cells))


def shape_text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def range_text(middle: float, low: float, high: float) -> str:
    """`3.1 %`: the further of the two, as a share of the middle."""
    return f"{100 * max(high - middle, middle - low) / middle:.1f} %"


def spec_text(layout: Layout, names: Sequence[str]) -> str:
    """As one writes it in JAX: `P(None, 'x')`; `whole` where nothing is split."""
    entries = ", ".join(map(repr, to_spec(layout, names)))
    return f"P({entries})" if entries else "whole"


def segments_text(indices: Iterable[int]) -> str:
    """`1-24, 26`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
