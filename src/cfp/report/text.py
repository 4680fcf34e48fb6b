"""Text and tables, as all reports write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from cfp.layouts import Layout, to_spec
from cfp.plan import Plan

NOT_MEASURED = "not measured"
WHOLE = "whole"
WHOLE_LEGEND = f"{WHOLE}: every device holds all of it. P('x'): mesh axis x splits its first dim."
WRAPPED_COLUMNS = 8  # the least width of a cell that may wrap: narrower ones tear words apart


def line(text: str) -> Text:
    """Returns the text as it is: without markup, and without what steers a terminal."""
    return Text("".join(c if c.isprintable() else "?" for c in text))


class FittingTable(Table):
    """A table that becomes a list where the console is too narrow for its figures.

    Rich would cut off the end of a figure, which is its unit.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least_width(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._rows_as_lines()

    def _least_width(self, console: Console, options: ConsoleOptions) -> int:
        """Returns the width that fixed columns need and that leaves the others readable."""
        _, right, _, left = self.padding
        edges = len(self.columns) + 1  # a character between columns and at both ends
        least = edges + (left + right) * len(self.columns)
        for column in self.columns:
            cells = (column.header, *column.cells)
            width = max(Measurement.get(console, options, cell).maximum for cell in cells)
            least += width if column.no_wrap else min(width, WRAPPED_COLUMNS)
        return least

    def _rows_as_lines(self) -> Iterator[Text]:
        """Yields the first cell of a row, and below it `header: cell` for every other that is not
        empty."""
        yield Text(str(self.title or ""), style="bold")
        for index, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            cells = [str(cell) for cell in row]
            said = [
                f"{column.header}: {cell}"
                for column, cell in zip(self.columns[1:], cells[1:], strict=True)
                if cell
            ]
            yield Text(f"  {cells[0]}" if cells[0] else f"  ({index + 1})")
            yield from (Text(f"    {one}") for one in said)


def new_table(title: str, *columns: str) -> FittingTable:
    table = FittingTable(
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


def part_text(seconds: float | None) -> str:
    """Returns the text of a share of a time, which the profiler may not have measured."""
    return NOT_MEASURED if seconds is None else time_text(seconds)


def range_text(middle: float, low: float, high: float) -> str:
    """Returns `3.1 %`: how far the further end is from the middle."""
    return f"{100 * max(high - middle, middle - low) / middle:.1f} %"


def spec_text(layout: Layout, names: Sequence[str]) -> str:
    """Returns the layout as JAX writes it, `P(None, 'x')`, or `whole` where nothing is split."""
    entries = ", ".join(map(repr, to_spec(layout, names)))
    return f"P({entries})" if entries else WHOLE


def mesh_text(plan: Plan) -> str:
    """Returns `x=2, y=4`."""
    return ", ".join(f"{name}={size}" for name, size in plan.mesh.shape.items())
