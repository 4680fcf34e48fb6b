"""Tables fit the console: what does not is listed, and nothing is cut off."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from cfp.planning.compare import ComparedPlan, Comparison
from cfp.report import show_comparison, show_plan, show_planned
from cfp.report.text import add_row, new_table
from tests.report.test_evidence import planned

COMPARED = Comparison(
    rounds=15,
    plans=(
        ComparedPlan("plan.json", 0.01234, 0.0121, 0.0126, 1, 1, 1, 0.01, 0.0023, 2**27),
        ComparedPlan("data_parallel", 1.5, 1.4, 1.6, 121.5, 119.0, 123.0, 0.5, 1.0, 2**31),
    ),
)
CUT = "\N{HORIZONTAL ELLIPSIS}"


def shown(show: object, value: object, width: int) -> str:
    out = io.StringIO()
    show(value, Console(file=out, width=width, color_system=None))  # type: ignore[operator]
    text = out.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    return text


def words(text: str) -> str:
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", text).split())


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_every_unit_is_there_at_any_width(width: int) -> None:
    """Every figure of the widest tables is in the narrow ones, with its unit."""
    for show, value in (
        (show_planned, planned()),
        (show_plan, planned()),
        (show_comparison, COMPARED),
    ):
        figures = set(re.findall(r"\d[\d.]* (?:us|ms|B|KiB|MiB|GiB|%)", shown(show, value, 300)))
        assert len(figures) > 5
        narrow = words(shown(show, value, width))
        assert CUT not in narrow
        assert not [figure for figure in figures if figure not in narrow]


def test_a_list_says_what_the_table_says() -> None:
    table = new_table("Steps", "plan", "measured", "memory")
    for column in table.columns[1:]:
        column.no_wrap = True
    add_row(table, "cfp, chosen", "12.34 ms", "1.5 GiB")
    add_row(table, "", "56.78 ms", "")
    out = io.StringIO()
    Console(file=out, width=20).print(table)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "Steps",
        "  cfp, chosen",
        "    measured: 12.34",
        "ms",
        "    memory: 1.5 GiB",
        "  (2)",
        "    measured: 56.78",
        "ms",
    ]
