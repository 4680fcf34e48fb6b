"""What all charts of the page have in common."""

from __future__ import annotations

from typing import Any

from bokeh.models import ColumnDataSource, HoverTool
from bokeh.models.annotations import LabelSet
from bokeh.plotting import figure

LABEL = 28  # characters of a bar's label: at 390 pixels the bar still has most of the width


def new_figure(height: int, tooltips: Any = None, **options: Any) -> Any:
    """Returns an empty figure: as wide as its place, with no tools but pointing at things."""
    chart: Any = figure(
        height=height,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        background_fill_alpha=0.0,
        border_fill_alpha=0.0,
        outline_line_alpha=0.0,
        **options,
    )
    if tooltips is not None:
        chart.add_tools(HoverTool(tooltips=tooltips))
    return chart


def point_labels(source: ColumnDataSource, x: str, y: str, text: str) -> LabelSet:
    """Returns the texts beside points."""
    return LabelSet(
        x=x, y=y, text=text, source=source, x_offset=8, y_offset=4, text_font_size="11px"
    )


def legend_above(chart: Any) -> None:
    """Puts the legend above the plot, in one row: inside, it would hide points."""
    if chart.legend:
        chart.add_layout(chart.legend[0], "above")
        chart.legend.orientation = "horizontal"
        chart.legend.border_line_alpha = 0.0
        chart.legend.background_fill_alpha = 0.0
        chart.legend.padding = chart.legend.margin = 0
        chart.legend.label_text_font_size = "12px"


def memory_unit(most_bytes: int) -> tuple[str, int]:
    """Returns the unit of an axis that goes up to so much, and its bytes.

    >>> memory_unit(3 * 2**30), memory_unit(80 * 2**30)
    (('MiB', 1048576), ('GiB', 1073741824))
    """
    return ("GiB", 2**30) if most_bytes >= 4 * 2**30 else ("MiB", 2**20)


def short_label(text: str) -> str:
    """Returns a text that leaves room for the bar beside it."""
    return text if len(text) <= LABEL else text[: LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
