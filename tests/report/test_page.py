"""The page about a plan: whole, well formed, and nothing in it is taken for markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cfp.errors import CfpError
from cfp.report import render_page
from tests.report.test_evidence import EVIDENCE, planned

VOID = {"meta", "circle", "polyline"}


class Reader(HTMLParser):
    """Checks that every tag is closed, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> str:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return " ".join(" ".join(reader.text).split())


def test_it_says_what_the_plan_is_and_why() -> None:
    plan = planned()
    text = read(render_page(plan))
    assert "A plan for a mesh of x=4" in text
    for segment in EVIDENCE.segments:
        assert segment.splits in text
    for step in (*EVIDENCE.steps, *EVIDENCE.confirmed):
        assert step.name in text
    for tensor in plan.arguments:
        assert tensor.path in text
    assert f"seed {EVIDENCE.seed}" in text
    assert "does not run: segment 0: batch and 1 more (the worker crashed: Check failed)" in text
    assert "2 failures are recorded and not tried again: `cfp cache prune --failed`" in text


def test_the_times_shown_add_up_to_the_prediction() -> None:
    plan = planned()
    assert plan.predicted is not None
    table = render_page(plan).partition("Predicted cost")[2].partition("</table>")[0]
    rows = [row.split('<td class="n">')[1:] for row in table.split("<tr")[2:]]
    *shown_ms, in_all_ms = [float(row[0].partition("<")[0]) for row in rows]
    assert len(shown_ms) == 5
    assert in_all_ms == pytest.approx(plan.predicted.time_s * 1e3, abs=0.01)
    assert sum(shown_ms) == pytest.approx(in_all_ms, abs=0.01 * len(shown_ms))


def test_the_labels_of_the_plot_are_text_beside_it() -> None:
    """In the drawing they would be cut off where they are wide, and shrink with it."""
    drawing = render_page(planned()).partition("<svg")[2].partition("</svg>")[0]
    assert "<text" not in drawing
    assert "60.00 ms 41.00 ms" in read(render_page(planned()))


def test_every_point_of_the_frontier_is_drawn() -> None:
    page = render_page(planned())
    assert page.count("<circle") - page.count("this plan</title>") == len(EVIDENCE.frontier)
    flat = replace(EVIDENCE, frontier=EVIDENCE.frontier[:1])
    assert "<svg" not in render_page(replace(planned(), evidence=flat))


def test_nothing_is_taken_for_markup() -> None:
    plan = replace(planned(), notes=("<script>alert(1)</script>",))
    assert "<script>" not in render_page(plan)


def test_a_template_has_no_page() -> None:
    with pytest.raises(CfpError, match="was not planned"):
        render_page(replace(planned(), evidence=None))
