"""Every example runs, trains, and fits on a page.

One of them finds its plan by measuring, as for a user; the others get a template in its place: that
plans are found for such steps is tested elsewhere (`tests/first_contact`), and takes a minute each.
"""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest

from cfp import planner, templates

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
MEASURED = "plain_jax"
NEEDS = {"torch_gpt2": ("torch", "torchax")}
MOST_LINES = 80


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_trains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'cfp-jax[torch]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for room in ("runners.shared_decision", "api"):
        monkeypatch.setattr(f"cfp.profile.{room}.can_isolate", lambda mesh: False)
    if name != MEASURED:
        monkeypatch.setattr(planner, "run_stages", from_template)
    script = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    losses = script["main"](steps=3, budget="60s")
    assert losses[-1] < losses[0]
    assert "x" in capsys.readouterr().out


def from_template(task: Any, *_: object) -> Any:
    return templates.zero1(task.step, *task.args, mesh=task.mesh)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_fits_on_a_page(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count("\n") < MOST_LINES
    assert f"python examples/{name}.py" in text, "how to run it"
    assert f"`{name}.py`" in (EXAMPLES / "README.md").read_text()
