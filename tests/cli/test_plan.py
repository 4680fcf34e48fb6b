"""`cfp plan` and `cfp compare`, as one types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cfp.cli import cli
from cfp.planning.scaling import factorisations
from cfp.profile.measure.budget import ROUNDS

TARGET = "tests.planning.project:make_step"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def plan_file(folder: Path) -> Path:
    """Planned, over all meshes of two devices: there is one."""
    path = folder / "plan.json"
    words = ("--devices", 2, "--cache-dir", folder / "cache", "--out", path)
    beside = ("--beside", "fsdp", "--beside", "zero1,fsdp")
    result = run("plan", TARGET, "--platform", "cpu", *words, *beside)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("A step takes ")
    for said in ("cfp: a plan for a mesh of x=2", "predicted 1", "zero1", "Memory limit: none"):
        assert said in result.stdout
    assert f"Wrote {path} and {path.with_suffix('.html')}." in result.stderr
    assert path.with_suffix(".html").exists()
    return path


def test_the_file_is_a_plan_with_its_evidence(plan_file: Path) -> None:
    document = json.loads(plan_file.read_text())
    assert document["name"] == "cfp"
    assert document["target"] == {"name": TARGET, "options": {}, "given": []}
    assert document["predicted"]["time_s"] > 0
    chosen_by, confirmed = (document["evidence"][name][0] for name in ("steps", "confirmed"))
    assert chosen_by["name"] == confirmed["name"]
    names = [one["name"] for one in document["evidence"]["confirmed"]]
    assert names.count("fsdp") == 1, "named twice, measured once"
    assert len(confirmed["runs_s"]) >= ROUNDS
    assert chosen_by["runs_s"][:6] != confirmed["runs_s"][:6], "other rounds"
    result = run("explain", plan_file)
    assert result.exit_code == 0
    assert "Full steps measured on fresh rounds" in result.stdout


def test_it_says_what_was_measured_and_what_is_sent(plan_file: Path) -> None:
    """The report needs every option, the collectives of the chosen plan, and where time went."""
    document = json.loads(plan_file.read_text())
    evidence = document["evidence"]
    segments = [at for kind in evidence["kinds"] for at in kind["segments"]]
    assert sorted(segments) == [*range(len(evidence["segments"]))]
    for kind in evidence["kinds"]:
        measured = {one["splits"]: one for one in kind["options"]}
        for at in kind["segments"]:
            chosen = measured[evidence["segments"][at]["splits"]]
            assert chosen["sent"] is not None
            assert chosen["time_s"] == evidence["segments"][at]["segment_s"]
    assert sum(one["seconds"] for one in evidence["spent"]) == pytest.approx(
        evidence["seconds"], rel=0.1, abs=0.5
    )
    sent = sum(one["bytes"] * one["times"] for one in document["collectives"])
    assert sum(row["bytes"] for row in evidence["confirmed"][0]["sent"]) == pytest.approx(sent)
    assert evidence["flops"] > 0


def test_report(plan_file: Path, folder: Path) -> None:
    result = run("report", plan_file, "--out", folder / "again.html")
    assert result.exit_code == 0, result.output
    assert f"Wrote {folder / 'again.html'}." in result.stderr
    page = (folder / "again.html").read_text()
    assert "data_parallel" not in page
    assert "zero1" in page
    missing = run("report", folder / "nowhere.json")
    assert "Cannot read" in str(missing.exception)


def test_one_document_on_stdout(plan_file: Path, folder: Path) -> None:
    words = ("--mesh", 2, "--cache-dir", folder / "cache", "--beside", "zero1,fsdp", "--json")
    result = run("plan", TARGET, "--platform", "cpu", *words)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["segments"] == json.loads(plan_file.read_text())["segments"]
    assert document["evidence"]["loaded"] == document["evidence"]["programs"]


def test_compare(plan_file: Path, folder: Path) -> None:
    """The plan file says what is compared, and on which mesh."""
    words = ("--plans", f"{plan_file},data_parallel", "--rounds", 5, "--json")
    result = run("compare", "--platform", "cpu", *words)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["rounds"] == 5
    assert {one["name"] for one in document["plans"]} == {str(plan_file), "data_parallel"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", TARGET), "Give --mesh 2x4, or --devices 8"),
        (("plan", TARGET, "--mesh", 2, "--devices", 2), "Give --mesh 2x4, or --devices 8"),
        (("plan", TARGET, "--mesh", 2, "--memory-limit", "much"), "not an amount of memory"),
        (("plan", TARGET, "--mesh", 2, "--audit", -1), "--audit"),
        (("compare", TARGET, "--mesh", 2, "--plans", ","), "--plans is empty"),
    ],
)
def test_usage(words: tuple[object, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_plan_that_is_not_there() -> None:
    result = run("compare", TARGET, "--mesh", 2, "--plans", "nowhere.json")
    assert result.exit_code == 1
    assert "`nowhere.json` is no plan: name cfp, a template (" in str(result.exception)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (1, [(1,)]),
        (4, [(4,), (2, 2)]),
        (7, [(7,)]),
        (8, [(8,), (2, 4), (4, 2), (2, 2, 2)]),
        (12, [(12,), (2, 6), (3, 4), (4, 3), (6, 2), (2, 2, 3), (2, 3, 2), (3, 2, 2)]),
    ],
)
def test_meshes_of_so_many_devices(devices: int, expected: list[tuple[int, ...]]) -> None:
    assert factorisations(devices) == expected
