"""The page's charts, drawn by Bokeh, whose JavaScript comes with the package and is in the page.

A chart is a figure with named parts. Colours of text and lines follow the page's light or dark
scheme (`assets/charts.js`); those of the data are told apart on both. Every chart has a table
beside it, for those who do not see it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import BasicTicker, ColumnDataSource, LinearColorMapper, NumeralTickFormatter
from bokeh.models.annotations import ColorBar, Span, Whisker
from bokeh.palettes import Viridis256
from bokeh.resources import Resources

from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import Evidence
from cfp.planning.scaling import Scaled
from cfp.report.evidence import segment_rows
from cfp.report.page.figures import legend_above, memory_unit, new_figure, point_labels, short_label
from cfp.report.steps import all_steps, how_known, own_name, prediction_error
from cfp.report.text import time_text
from cfp.report.verdict import Speedup

BLUE, ORANGE, RED, GREY, GREEN = "#3b7dd8", "#e08a2e", "#d1495b", "#8a93a0", "#2f9e6e"
COLOUR_BAR = 240  # pixels: it fits beside its labels at 390
LOW, HIGH, ROW = 300, 340, 34  # pixels: a chart's height, a higher one's, and that of a row of bars


@functools.cache
def bokeh_script() -> str:
    """Returns the JavaScript that draws the charts."""
    found = Resources(mode="inline", components=["bokeh"], log_level="error").js_raw
    return "\n".join(found)


def charts_of(
    plan: Plan, speedups: Sequence[Speedup], scaling: Sequence[Scaled] = ()
) -> dict[str, Any]:
    """Returns the charts that there is something to show in, as Bokeh's JSON, by the id of their
    place in the page."""
    evidence = plan.evidence
    if evidence is None:
        return {}
    made = {
        "chart-speedup": _speedup(speedups) if speedups else None,
        "chart-costs": _costs(evidence) if evidence.segments else None,
        "chart-options": _options() if evidence.kinds else None,
        "chart-frontier": _frontier(plan, evidence) if len(evidence.frontier) > 1 else None,
        "chart-predicted": _predicted(evidence),
        "chart-scaling": _scaling([row for row in scaling if row.best]),
    }
    return {at: json_item(chart, ID(at)) for at, chart in made.items() if chart is not None}


def _speedup(found: Sequence[Speedup]) -> Any:
    names = [one.name for one in found]
    colours = {"slower": GREEN, "faster": RED}
    source = ColumnDataSource(
        {
            "name": names,
            "times": [one.times for one in found],
            "low": [one.times if one.low is None else one.low for one in found],
            "high": [one.times if one.high is None else one.high for one in found],
            "colour": [colours.get(str(one.verdict), GREY) for one in found],
            "said": [one.show() for one in found],
        }
    )
    chart = new_figure(70 + ROW * len(found), [("", "@said")], y_range=names[::-1])
    chart.hbar(y="name", right="times", height=0.6, source=source, color="colour", alpha=0.85)
    chart.add_layout(
        Whisker(base="name", lower="low", upper="high", source=source, dimension="width")
    )
    chart.add_layout(Span(location=1.0, dimension="height", line_dash="dashed", line_color=GREY))
    chart.x_range.start = 0
    chart.x_range.end = 1.05 * max(one.high or one.times for one in found)
    chart.xaxis.axis_label = "times as long as this plan"
    chart.ygrid.visible = False
    return chart


def _costs(evidence: Evidence) -> Any:
    rows = segment_rows(evidence)
    texts = [f"{where}: {cost.splits}" if where else cost.splits for where, cost in rows]
    labels = [f"{short_label(text)}{chr(0x200B) * i}" for i, text in enumerate(texts)]  # all differ
    parts = {
        "computing": [1e3 * (cost.compute_s or 0.0) for _, cost in rows],
        "communicating": [1e3 * (cost.communication_s or 0.0) for _, cost in rows],
        "not told apart": [
            1e3 * cost.segment_s if cost.compute_s is None else 0.0 for _, cost in rows
        ],
        "resharding": [1e3 * cost.resharding_s for _, cost in rows],
    }
    shown = [name for name, values in parts.items() if any(values)]
    splits = [cost.splits for _, cost in rows]
    source = ColumnDataSource(
        {"row": labels, "splits": splits, **{name: parts[name] for name in shown}}
    )
    colours = dict(zip(parts, (BLUE, ORANGE, GREY, RED), strict=True))
    chart = new_figure(
        100 + ROW * len(rows),
        [("", "@splits"), ("$name", "@$name{0.000} ms")],
        y_range=labels[::-1],
    )
    chart.hbar_stack(
        shown,
        y="row",
        height=0.6,
        source=source,
        color=[colours[name] for name in shown],
        legend_label=shown,
    )
    chart.x_range.start = 0
    chart.xaxis.axis_label = "ms a step"
    chart.ygrid.visible = False
    legend_above(chart)
    return chart


def _options() -> Any:
    """Returns an empty chart, which `assets/options.js` fills with the segment that is chosen."""
    empty = ("memory", "time", "share", "splits", "said", "size", "label")
    points, marked = (ColumnDataSource({name: [] for name in empty}) for _ in range(2))
    points.name, marked.name = "points", "marked"
    chart = new_figure(HIGH, [("", "@splits"), ("", "@said")], name="options")
    shares = LinearColorMapper(palette=Viridis256, low=0, high=1, nan_color=GREY)
    chart.scatter(
        "memory",
        "time",
        source=points,
        size=9,
        color={"field": "share", "transform": shares},
        line_color=GREY,
        alpha=0.9,
    )
    chart.scatter(
        "memory",
        "time",
        source=marked,
        size="size",
        marker="circle",
        fill_alpha=0.0,
        line_color=RED,
        line_width=2,
    )
    chart.add_layout(point_labels(marked, "memory", "time", "label"))
    bar = ColorBar(
        color_mapper=shares,
        ticker=BasicTicker(desired_num_ticks=3),
        formatter=NumeralTickFormatter(format="0 %"),
        title="communicating",
        height=10,
        width=COLOUR_BAR,
        padding=4,
        border_line_color=None,
        background_fill_color=None,
    )
    chart.add_layout(bar, "above")
    chart.xaxis.axis_label = "MiB on a device"
    chart.yaxis.axis_label = "ms for one occurrence"
    chart.x_range.range_padding = chart.y_range.range_padding = 0.2
    return chart


def _frontier(plan: Plan, evidence: Evidence) -> Any:
    points, limit = evidence.frontier, evidence.memory_limit_bytes
    unit, size = memory_unit(max(limit or 0, *(point.memory_bytes for point in points)))
    line = ColumnDataSource(
        {
            "memory": [point.memory_bytes / size for point in points],
            "time": [point.time_s * 1e3 for point in points],
            "said": [
                f"{bytes_text(p.memory_bytes)}, {time_text(p.time_s)}: {p.splits}" for p in points
            ],
        }
    )
    chart = new_figure(HIGH, [("", "@said")])
    chart.step("memory", "time", source=line, mode="after", color=BLUE, line_width=2)
    chart.scatter(
        "memory", "time", source=line, size=7, color=BLUE, legend_label="fastest for its memory"
    )
    steps = [step for step in all_steps(evidence) if step.ran]
    measured = ColumnDataSource(
        {
            "memory": [(step.memory_bytes or 0) / size for step in steps],
            "time": [step.time_s * 1e3 for step in steps],
            "label": [own_name(step, evidence) for step in steps],
            "said": [
                f"{own_name(step, evidence)}, {step.provenance}: {time_text(step.time_s)}"
                for step in steps
            ],
        }
    )
    if steps:
        chart.scatter(
            "memory",
            "time",
            source=measured,
            marker="diamond",
            size=12,
            color=ORANGE,
            legend_label=f"full steps, {how_known(evidence)}",
        )
        chart.add_layout(point_labels(measured, "memory", "time", "label"))
    if plan.predicted is not None:
        own = ([plan.predicted.memory_bytes / size], [plan.predicted.time_s * 1e3])
        chart.scatter(
            *own,
            marker="circle",
            size=16,
            fill_alpha=0.0,
            line_color=RED,
            line_width=2,
            legend_label="this plan, predicted",
        )
    if limit is not None:
        chart.vspan(x=[limit / size], line_dash="dashed", color=RED, legend_label="memory limit")
    chart.x_range.range_padding = chart.y_range.range_padding = 0.2  # labels are beside points
    chart.xaxis.axis_label = f"{unit} on a device"
    chart.yaxis.axis_label = "ms a step"
    legend_above(chart)
    return chart


def _scaling(best: Sequence[Scaled]) -> Any | None:
    """Returns the steps per second of the best plans against the number of devices, beside what the
    same speed of each device would give."""
    if len(best) < 2:
        return None
    first, most = best[0], best[-1].devices
    source = ColumnDataSource(
        {
            "devices": [row.devices for row in best],
            "speed": [1 / row.time_s for row in best],
            "label": ["x".join(map(str, row.mesh)) for row in best],
            "said": [f"{time_text(row.time_s)}, {row.efficiency:.0%} efficient" for row in best],
        }
    )
    chart = new_figure(LOW, [("", "@said")])
    ideal = [0, most / first.devices / first.time_s]
    chart.line([0, most], ideal, color=GREY, line_dash="dashed", legend_label="the same speed each")
    chart.line("devices", "speed", source=source, color=BLUE, line_width=2)
    chart.scatter("devices", "speed", source=source, size=9, color=BLUE, legend_label="best mesh")
    chart.add_layout(point_labels(source, "devices", "speed", "label"))
    chart.xaxis.axis_label = "devices"
    chart.yaxis.axis_label = "steps a second"
    chart.x_range.start = chart.y_range.start = 0
    legend_above(chart)
    return chart


def _predicted(evidence: Evidence) -> Any | None:
    steps = all_steps(evidence)
    known = [step for step in steps if step.ran and step.predicted_s is not None]
    if not known:
        return None
    predicted = [1e3 * (step.predicted_s or 0.0) for step in known]
    source = ColumnDataSource(
        {
            "predicted": predicted,
            "measured": [1e3 * step.time_s for step in known],
            "low": [1e3 * (step.low_s or step.time_s) for step in known],
            "high": [1e3 * (step.high_s or step.time_s) for step in known],
            "label": [own_name(step, evidence) for step in known],
            "said": [
                f"{own_name(step, evidence)}: {time_text(step.predicted_s or 0.0)} predicted, "
                f"{time_text(step.time_s)} {step.provenance} ({prediction_error(step)})"
                for step in known
            ],
        }
    )
    chart = new_figure(LOW, [("", "@said")])
    top = 1.15 * max(*predicted, *(1e3 * (step.high_s or step.time_s) for step in known))
    chart.line([0, top], [0, top], color=GREY, line_dash="dashed", legend_label="exact")
    chart.scatter("predicted", "measured", source=source, size=11, color=BLUE)
    chart.add_layout(Whisker(base="predicted", lower="low", upper="high", source=source))
    chart.add_layout(point_labels(source, "predicted", "measured", "label"))
    chart.x_range.start = chart.y_range.start = 0
    chart.x_range.end = chart.y_range.end = top
    chart.xaxis.axis_label = "ms predicted"
    chart.yaxis.axis_label = f"ms {how_known(evidence)}"
    legend_above(chart)
    return chart
