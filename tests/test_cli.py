"""The command line: exit codes, one JSON document on stdout, one clear sentence on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfp.cli import main

USER_STEP = """
import jax.numpy as jnp

def step(w, x):
    return w - 0.1 * x.T @ (x @ w)

def make_step():
    return step, (jnp.ones((8, 8)), jnp.ones((16, 8)))

def not_a_step():
    return 42

def raises():
    raise FileNotFoundError("data.bin")
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("cfp, version ")
    code, out, _ = run(capsys, "analyze", "--help")
    assert code == 0
    assert "cfp analyze gpt --layers 96 --mesh 4" in out


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "analyze", "gpt", "--layers", "3", "--mesh", "4")
    assert code == 0
    assert "3^4 = 81" in out
    assert "14 ParallelBlocks, 5 segments, 3 distinct" in out


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "analyze", "moe", "--mesh", "2x4", "--json", "--scan")
    assert code == 0
    document = json.loads(out)
    for key in ("equations", "blocks", "segments", "distinct_segments", "opaque", "seconds"):
        assert key in document
    assert document["mesh_shape"] == [2, 4]


def test_your_own_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user_project.py").write_text(USER_STEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = run(capsys, "analyze", "user_project:make_step", "--mesh", "2", "--json")
    assert code == 0
    assert len(json.loads(out)["blocks"]) == 2
    code, _, err = run(capsys, "analyze", "user_project:not_a_step")
    assert (code, err) == (
        1,
        "cfp: `user_project:not_a_step` must return (step, args), not a int.\n",
    )
    code, _, err = run(capsys, "analyze", "user_project:raises")
    assert code == 1
    assert "`user_project:raises` failed: FileNotFoundError: data.bin (user_project.py:" in err
    code, _, err = run(capsys, "analyze", "user_project:missing")
    assert code == 1
    assert "`user_project` has no function `missing`" in err
    code, _, err = run(capsys, "analyze", "user_project:make_step", "--layers", "3")
    assert code == 1
    assert "--layers is for built-in models" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["analyze", "gtp"], 1, "There is no model `gtp`: use one of bert, gpt, moe, llama"),
        (["analyze", "no.such:thing"], 1, "Cannot import `no.such`"),
        (["analyze", "gpt", "--mesh", "7"], 1, "A mesh of 7 divides no dim"),
        (["analyze", "gpt", "--size", "huge"], 1, "huge"),
        (["analyze", "gpt", "--hidden", "63"], 1, "`hidden` (63)"),
        (["analyze", "gpt", "--mesh", "2x"], 2, "is not a mesh: write 4 or 2x4"),
        (["analyze"], 2, "Missing argument 'TARGET'"),
        (["plam"], 2, "No such command 'plam'"),
    ],
)
def test_bad_input(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *arguments)
    assert found == code
    assert message in err
    assert out == ""
    assert "Traceback" not in err


def test_a_bug_of_ours_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("cfp.cli.load_target", boom)
    code, out, err = run(capsys, "analyze", "gpt")
    assert code == 3
    assert out == ""
    assert "RuntimeError: boom" in err
    assert "this is a bug of ours" in err
