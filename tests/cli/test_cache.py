"""`cfp cache show` and `cfp cache prune`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cfp.cli.cache import cache
from cfp.errors import CfpError
from cfp.profile.measure.store import TUNED_FOLDER, Record, Store

DAY_S = 86400.0


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cache, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "140")
    now = time.time()
    with Store.open(tmp_path) as store:
        for n, (name, environment, failed, days) in enumerate(
            (
                ("layer: batch", "4 cpu, jax 0.10.2", None, 1),
                ("layer: output features", "4 cpu, jax 0.10.2", "out of memory", 2),
                ("boundary: batch to [red]", "4 cpu, jax 0.10.2", None, 40),
                ("layer: batch", "8 gpu, jax 0.11.0", None, 50),
            )
        ):
            document = {"failed": failed}
            made_at = now - days * DAY_S
            store.put(Record(f"k{n}", f"p{n % 2}", name, environment, document, made_at))
    return tmp_path


def test_show(folder: Path) -> None:
    result = call("show", "--cache-dir", folder)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    rows = [line.split() for line in lines if "layer" in line or "boundary" in line]
    assert [row[:-4] for row in rows] == [
        ["4", "cpu,", "jax", "0.10.2", "layer", "2", "2", "1"],
        ["boundary", "1", "1", "0"],
        ["8", "gpu,", "jax", "0.11.0", "layer", "1", "1", "0"],
    ]
    assert lines[-1].startswith("4 measurements, ")
    assert lines[-1].endswith(f"in {folder}/measurements.sqlite.")


def test_show_json(folder: Path) -> None:
    document = json.loads(call("show", "--cache-dir", folder, "--json").stdout)
    assert document["path"] == f"{folder}/measurements.sqlite"
    assert (document["measured"], document["failed"]) == (4, 1)
    assert document["size_bytes"] == Path(document["path"]).stat().st_size
    first = document["groups"][0]
    assert first["newest"] - first["oldest"] == pytest.approx(DAY_S)
    assert {**first, "newest": 0, "oldest": 0} == {
        "environment": "4 cpu, jax 0.10.2",
        "kind": "layer",
        "programs": 2,
        "measured": 2,
        "failed": 1,
        "oldest": 0,
        "newest": 0,
    }


def test_show_of_an_empty_store(tmp_path: Path) -> None:
    result = call("show", "--cache-dir", tmp_path)
    assert result.stdout == f"No measurements yet in {tmp_path}/measurements.sqlite.\n"
    assert json.loads(call("show", "--cache-dir", tmp_path, "--json").stdout)["groups"] == []


def test_show_names_what_was_set_aside(tmp_path: Path) -> None:
    (tmp_path / "measurements.sqlite").write_bytes(b"garbage" * 100)
    result = call("show", "--cache-dir", tmp_path, "--json")
    assert json.loads(result.stdout)["measured"] == 0
    assert result.stderr.startswith("cfp: ")
    assert "measurements.sqlite.damaged-1" in result.stderr


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        (["--older-than", "30d"], ["k1", "k0"]),
        (["--older-than", "36h"], ["k0"]),
        (["--failed"], ["k3", "k2", "k0"]),
        (["--failed", "--older-than", "30d"], ["k3", "k2", "k1", "k0"]),
        (["--all"], []),
    ],
)
def test_prune(folder: Path, conditions: list[str], kept: list[str]) -> None:
    result = call("prune", "--cache-dir", folder, *conditions)
    assert result.exit_code == 0
    removed = 4 - len(kept)
    several = "" if removed == 1 else "s"
    said = f"Removed {removed} measurement{several} from {folder}/measurements.sqlite.\n"
    assert result.stdout == said
    with Store.open(folder) as store:
        assert [one.key for one in store.entries()] == kept


def test_prune_json(folder: Path) -> None:
    document = json.loads(call("prune", "--all", "--cache-dir", folder, "--json").stdout)
    said = {"removed": 4, "freed_bytes": 0, "plans": 0}
    assert document == {"path": f"{folder}/measurements.sqlite", **said}


def test_plans_are_shown_and_removed(folder: Path) -> None:
    """Failures are of measurements: no plan is removed with them."""
    (folder / "plans").mkdir()
    (folder / "plans" / "a.json").write_text("{}")
    assert call("show", "--cache-dir", folder).stdout.startswith(f"1 plan in {folder}/plans.\n")
    shown = json.loads(call("show", "--cache-dir", folder, "--json").stdout)
    assert shown["plans"] == [f"{folder}/plans/a.json"]
    assert " and " not in call("prune", "--cache-dir", folder, "--failed").stdout
    said = call("prune", "--cache-dir", folder, "--all").stdout
    assert said.startswith("Removed 3 measurements and 1 plan from ")
    assert not list((folder / "plans").iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Say which to remove: --older-than 30d, --failed or --all."),
        (["--all", "--failed"], "leave the other conditions out."),
        (["--older-than", "soon"], "'soon' is not a length of time: write 90s, 5m, 1h30m or 30d."),
    ],
)
def test_prune_needs_to_know_which(folder: Path, arguments: list[str], said: str) -> None:
    result = call("prune", "--cache-dir", folder, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    with Store.open(folder) as store:
        assert len(list(store.entries())) == 4


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("show", "--cache-dir", tmp_path / "file")
    assert isinstance(result.exception, CfpError)


def test_all_is_the_choices_of_kernels_too(folder: Path) -> None:
    tuned = folder / TUNED_FOLDER / "0123"
    tuned.mkdir(parents=True)
    (tuned / "choice").write_text("")
    call("prune", "--older-than", "1m", "--cache-dir", folder)
    assert tuned.exists()
    call("prune", "--all", "--cache-dir", folder)
    assert not tuned.parent.exists()
    call("prune", "--all", "--cache-dir", folder)


@pytest.mark.parametrize("command", [[], ["show"], ["prune"]])
def test_help_has_a_line_to_run(command: list[str]) -> None:
    assert "    cfp cache " in call(*command, "--help").stdout
