"""The page in a real browser: it asks for nothing, complains of nothing, and everything works.

The browser is the system's Chromium; without one these tests are skipped, and say so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docs.screenshots import NAMES, SHOTS, Shot, browser, find_chromium, open_page, take

from tests.report.llama import BLOCKS, make_plan

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no browser to test the report in: install one of {', '.join(NAMES)}"
)
DESK = Shot("desk", 1200, 900, "light", "verdict")
MOST_BYTES = 300_000  # of a picture: the docs show several on a page


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("report") / "plan.html"
    make_plan().report(found)
    return found


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    assert CHROMIUM is not None
    with browser(CHROMIUM) as found:
        yield found


@pytest.fixture(scope="module")
def page(opened: Any, path: Path) -> Iterator[Any]:
    found = open_page(opened, path, DESK)
    yield found
    found.context.close()


@pytest.mark.parametrize("shot", [DESK, replace(DESK, width=390), replace(DESK, scheme="dark")])
def test_it_asks_for_nothing_and_complains_of_nothing(opened: Any, path: Path, shot: Shot) -> None:
    context = opened.new_context(
        viewport={"width": shot.width, "height": shot.height}, color_scheme=shot.scheme
    )
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda one: said.append(one.text) if one.type != "log" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("chartsReady")
    for section in page.locator("main section").all():
        section.scroll_into_view_if_needed()
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    drawn = page.locator(".chart .bk-Figure").count()
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert wide <= 0, "the page itself never scrolls sideways"
    assert drawn == 5


def test_charts_take_the_colours_of_the_scheme(opened: Any, path: Path) -> None:
    colour = "() => Bokeh.documents[0].all_models.values().find(m => m.type == 'LinearAxis')"
    found = []
    for scheme in ("light", "dark"):
        page = open_page(opened, path, replace(DESK, scheme=scheme))
        found.append(page.evaluate(f"({colour})().major_label_text_color"))
        page.context.close()
    light, dark = found
    assert light != dark


def test_the_strip_is_folded_and_tells_of_its_blocks(page: Any) -> None:
    assert page.locator(".block").count() == len(BLOCKS) + 2, "32 layers are shown once"
    assert "\N{MULTIPLICATION SIGN}32" in page.locator(".fold.many .times").inner_text()
    detail = page.locator("#block-detail")
    page.locator(".block").nth(1).hover()
    assert "output features" in detail.inner_text()
    assert "ended because" in detail.inner_text()
    assert "llama.py:61" in detail.inner_text()
    page.locator(".block").nth(2).click()
    assert "out, block 1 of segments 1-32" in detail.inner_text()
    page.locator("h1").hover()
    assert "out, block 1" in detail.inner_text(), "what was tapped stays"


def test_the_strip_by_keyboard(page: Any) -> None:
    first = page.locator(".block").first
    first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "out, block 1 of segments 1-32" in page.locator("#block-detail").inner_text()
    page.keyboard.press("End")
    assert "head, block 0" in page.locator("#block-detail").inner_text()
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.classList.contains('block')")
    assert page.locator(".block[tabindex='0']").count() == 1, "one stop for the tab key"


def rows(page: Any, table: str) -> list[str]:
    found: list[str] = page.evaluate(
        "id => [...document.getElementById(id).tBodies[0].rows]"
        ".filter(row => !row.hidden).map(row => row.innerText)",
        table,
    )
    return found


def test_options_are_filtered(page: Any) -> None:
    count = page.locator("#options-count")
    assert count.inner_text().startswith("243 of 243 measured options")
    marked = [row for row in rows(page, "options-table") if "best:" in row]
    assert len(marked) == 3, "the best of each strategy of the block"
    assert any("chosen" in row for row in marked)
    page.select_option("#options-strategy", label="input features")
    page.select_option("#options-state", "fsdp")
    assert count.inner_text().startswith("27 of 243 measured options")
    shown = rows(page, "options-table")
    assert len(shown) == 27
    assert all(row.startswith("input features") and "(fsdp)" in row for row in shown)
    points = "() => Bokeh.documents.map(d => d.get_model_by_name('points')).find(Boolean).data"
    times = page.evaluate(f"({points})().time")
    assert len(times) == 27
    page.select_option("#options-measure", "communicate")
    alone = page.evaluate(f"({points})().time")
    assert all(part < whole for part, whole in zip(alone, times, strict=True))
    page.select_option("#options-kind", "0")
    assert count.inner_text().startswith("9 of 9 measured options")


def test_tables_are_sorted_by_their_headers(page: Any) -> None:
    header = page.locator("#parameter-table thead th", has_text="path")
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    paths = [row.partition("\t")[0] for row in rows(page, "parameter-table")]
    assert paths[0].startswith("batch['tokens']")
    header.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    size = page.locator("#parameter-table thead th", has_text="on a device")
    size.get_by_role("button").click()
    size.get_by_role("button").click()
    assert "250.0 MiB" in rows(page, "parameter-table")[0], "the largest first, by bytes, not text"


def test_parameters_are_found(page: Any) -> None:
    page.fill("#parameter-search", "mu gate")
    assert page.locator("[data-count=parameter-table]").inner_text() == "32 of 872 rows"
    page.fill("#parameter-search", r"params.*\[(3|4)\]\['q'\]")
    assert len(rows(page, "parameter-table")) == 2
    page.fill("#parameter-search", "(((")
    assert len(rows(page, "parameter-table")) == 0, "what is no pattern is text"
    page.fill("#parameter-search", "")
    assert len(page.locator("#parameter-table tbody tr.marked").all()) == 3


def test_why_not(page: Any) -> None:
    page.select_option("#why-group", "the whole step")
    shown = rows(page, "why-table")
    assert len(shown) == 6
    assert any(row.startswith("the whole step\tmegatron") and "all-reduce" in row for row in shown)
    page.select_option("#why-group", "q, block 0 of segments 1-32")
    assert len(rows(page, "why-table")) == 2
    page.fill("#why-search", "best.with.input")
    assert len(rows(page, "why-table")) == 1
    page.fill("#why-search", "")
    page.select_option("#why-group", "")


def test_collectives_are_found(page: Any) -> None:
    page.fill("#collective-search", "all-reduce backward")
    shown = rows(page, "collective-table")
    assert len(shown) == 2
    assert all("segments 1-32, block" in row and "llama.py" in row for row in shown)
    page.fill("#collective-search", "")


def test_it_can_be_read_by_ear(page: Any) -> None:
    """Charts have a label and a table; controls have labels; headings are in order."""
    for chart in page.locator(".chart").all():
        assert chart.get_attribute("role") == "img"
        assert chart.get_attribute("aria-label")
    names = page.evaluate(
        "[...document.querySelectorAll('select, input')].map(c => c.labels.length)"
    )
    assert names
    assert all(names)
    levels = page.evaluate(
        "[...document.querySelectorAll('main h1, main h2, main h3')].map(h => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_the_pictures_of_the_docs(opened: Any, path: Path, tmp_path: Path) -> None:
    for shot, found in zip(SHOTS, take(opened, path, tmp_path), strict=True):
        picture = found.read_bytes()
        size = (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24]))  # PNG's header
        assert size == (shot.width, shot.height)
        assert len(picture) < MOST_BYTES
