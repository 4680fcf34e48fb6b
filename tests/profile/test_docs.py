"""The snippet of docs/profiling.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import cfp
from tests.profile.steps import mesh_of, step


def test_the_snippet_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "profiling.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = ([jnp.ones((16, 16))] * 2, jnp.ones((16, 16)))
    exec(snippet, {"cfp": cfp, "step": step, "args": args, "mesh": mesh_of(2)})
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert (tmp_path / "cfp" / "measurements.sqlite").exists()
