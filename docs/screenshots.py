"""Pictures of a report, as the docs show them: `python -m docs.screenshots plan.html` writes them.

A headless Chromium opens the page as a reader would, on a desk, on a phone and in the dark. It is
the system's: `apt-get install chromium`, or whatever brings one of the names in `NAMES`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

IMAGES = Path(__file__).parent / "images"
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture: the window it is taken in, the scheme, and where the page is scrolled to."""

    name: str
    width: int
    height: int
    scheme: Literal["light", "dark"]
    section: str


SHOTS = (
    Shot("report_desktop", 1200, 1000, "light", "verdict"),
    Shot("report_options", 1200, 900, "light", "options"),
    Shot("report_dark", 1200, 900, "dark", "segments"),
    Shot("report_phone", 390, 844, "light", "model"),
)


def find_chromium() -> str | None:
    """Returns the system's Chromium; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser(chromium: str) -> Iterator[Any]:
    """Gives a headless Chromium, which is gone afterwards."""
    from playwright.sync_api import sync_playwright  # of the test group: the docs do without

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield opened
        opened.close()


def open_page(opened: Any, path: Path, shot: Shot) -> Any:
    """Returns the page when its charts are drawn."""
    context = opened.new_context(
        viewport={"width": shot.width, "height": shot.height}, color_scheme=shot.scheme
    )
    page = context.new_page()
    page.goto(path.resolve().as_uri())
    page.evaluate("chartsReady")
    return page


def take(opened: Any, path: Path, folder: Path) -> list[Path]:
    """Writes all pictures of a report into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for shot in SHOTS:
        page = open_page(opened, path, shot)
        page.evaluate(f"document.getElementById('{shot.section}').scrollIntoView()")
        if page.locator(".block").count() > 1:
            page.locator(".block").nth(1).dispatch_event("click")
        page.wait_for_timeout(300)  # milliseconds: a drawing follows a scroll
        written.append(folder / f"{shot.name}.png")
        page.screenshot(path=written[-1])
        page.context.close()
    return written


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m docs.screenshots plan.html")
    chromium = find_chromium()
    if chromium is None:
        sys.exit(f"There is no Chromium here: install one of {', '.join(NAMES)}.")
    with browser(chromium) as opened:
        for path in take(opened, Path(sys.argv[1]), IMAGES):
            print(path)


if __name__ == "__main__":
    main()
