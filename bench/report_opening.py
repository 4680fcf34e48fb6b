"""How long the report of a large model takes to open: LLaMA-7B, 32 layers, its numbers invented.

The page is written, and then opened in the system's Chromium in a new window each time:

    first paint   until something is on the screen
    loaded        until the page and its scripts are there
    drawn         until every chart is drawn

`python -m bench.report_opening` prints the medians in milliseconds, and the size of the page. Run
it on an otherwise idle machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from docs.screenshots import NAMES, SHOTS, browser, find_chromium, open_page
from tests.report.llama import make_plan

from bench.environment import made_by

REPEATS = 15
TIMES = """() => ({
  "first paint": performance.getEntriesByName("first-contentful-paint")[0].startTime,
  "loaded": performance.getEntriesByType("navigation")[0].loadEventEnd,
  "drawn": performance.now(),
})"""


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit(f"There is no Chromium here: install one of {', '.join(NAMES)}.")
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, browser(chromium) as opened:
        path = Path(folder) / "plan.html"
        make_plan().report(path)
        size = path.stat().st_size
        found = [_open(opened, path) for _ in range(REPEATS)]
    print(f"{size / 1e6:.2f} MB; medians of {REPEATS}, {made_by('bench.report_opening')}")
    for name in found[0]:
        print(f"{name:12} {statistics.median(one[name] for one in found):7.0f} ms")


def _open(opened: Any, path: Path) -> dict[str, float]:
    page = open_page(opened, path, SHOTS[0])
    times: dict[str, float] = page.evaluate(TIMES)
    page.context.close()
    return times


if __name__ == "__main__":
    main()
