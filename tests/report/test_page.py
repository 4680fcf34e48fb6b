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
    for step in EVIDENCE.steps:
        assert step.name in text
    for tensor in plan.arguments:
        assert tensor.path in text
    assert f"seed {EVIDENCE.seed}" in text


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
