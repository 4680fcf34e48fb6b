"""`cfp links` and `cfp calibrate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cfp.links import find_links, load_link
from tests.cli.test_entry import run

CFP = [sys.executable, "-m", "cfp"]


def test_links_are_listed(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run(capsys, "links")
    assert code == 0
    golden("links.txt", "\n".join(line.rstrip() for line in out.splitlines()) + "\n")


def test_one_link_is_shown(
    capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    code, out, _ = run(capsys, "links", "h200_nvlink")
    assert code == 0
    golden("link_h200_nvlink.txt", out)


def test_links_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "links", "ib_400g", "--json")
    assert code == 0
    (link,) = json.loads(out)
    assert (link["name"], link["scope"], link["error"]) == ("ib_400g", "network", None)
    curve = load_link("ib_400g").tables["all-reduce"][2]
    assert link["tables"]["all-reduce"]["2"]["time_s"] == [*curve.times_s]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["links", "h100"], "cfp: There is no link `h100`; did you mean `h100_nvlink`?"),
        (["links", "none.toml"], "cfp: Cannot read the links in none.toml: No such file"),
        (
            ["calibrate", "--mesh", "2", "--platform", "cpu", "--out", "mine"],
            "cfp: A link file ends in .toml, and --out is mine: write mine.toml.",
        ),
        (
            ["calibrate", "--mesh", "1", "--platform", "cpu", "--out", "mine.toml"],
            "cfp: A mesh of one device has no links: calibrate one of several.",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(said)


def test_two_processes_calibrate_on_loopback(tmp_path: Path) -> None:
    """What they write is what `--links` takes, by axis."""
    out = tmp_path / "mine.toml"
    command = ["calibrate", "--mesh", "2", "--platform", "cpu", "--out", str(out)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CFP_")}
    ran = subprocess.run(
        [*CFP, "launch", "--processes", "2", "--", *CFP, *command, "--largest", "4KiB", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert [link["name"] for link in json.loads(ran.stdout)] == ["x"]
    network = find_links(str(out), {"x": 2})
    assert [(link.name, link.scope) for link in network.links] == [("x", "node")]
    assert "2 processes on 1 host" in network.links[0].source
    assert 0 < network.time_s("all-reduce", ("x",), 2**20) < 60
