"""The command line: exit codes, one JSON document on stdout, one clear sentence on stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import jax
import pytest

import cfp
from cfp import CfpError, templates
from cfp.cli import cli, main
from cfp.cli.entry import COMMANDS
from cfp.devices import axis_names, make_mesh, reading_mesh
from cfp.plan.file import VERSION

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


GPT = ("gpt", "--layers", "1")
TRAINED = """
import jax
import jax.numpy as jnp

def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)

def step(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)

def make_step():
    return step, (jnp.ones((8, 8)), jnp.ones((36, 8)))
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    where = Path(cfp.__file__).parent
    assert out.startswith(f"cfp, version {cfp.__version__}, from {where} (python 3.")
    assert out.endswith(f", jax {jax.__version__})\n")
    code, out, _ = run(capsys, "analyze", "--help")
    assert code == 0
    assert "cfp analyze gpt --layers 96 --mesh 4" in out


def test_help_waits_for_no_jax() -> None:
    """What people ask for first comes at once, and so does a typing mistake."""
    said = "import sys; from cfp.cli import cli; cli.main(sys.argv[1:], standalone_mode=False); "
    check = "sys.exit(any(name in sys.modules for name in ('jax', 'numpy', 'rich')))"
    for words in (["--help"], ["--version"]):
        done = subprocess.run([sys.executable, "-c", said + check, *words], capture_output=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_group_says_what_each_command_says_of_itself(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert COMMANDS[name] == command.get_short_help_str(limit=200)


def test_rooms_do_not_hide_the_functions_of_their_names() -> None:
    said = "import cfp.plan.file; assert callable(cfp.plan) and callable(cfp.compare)"
    assert subprocess.run([sys.executable, "-c", said], check=False).returncode == 0
    assert {*dir(cfp)} == {*cfp.__all__}
    with pytest.raises(AttributeError, match="has no attribute `plam`"):
        cfp.plam  # noqa: B018


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
        "cfp: `user_project:not_a_step` must return (step, args), not an int.\n",
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


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cfp template` writes for a small GPT."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    with pytest.raises(SystemExit) as stopped:
        main(
            ["template", "megatron", *GPT, "--mesh", "2", "--pin", "batch.*=x", "--out", str(path)]
        )
    assert stopped.value.code == 0
    return path


def test_template_writes_a_plan(plan_file: Path) -> None:
    document = json.loads(plan_file.read_text())
    assert document["format"] == "cfp-plan"
    assert document["mesh"] == {"x": 2}
    assert document["arguments"]["batch['tokens']"]["spec"] == ["x"]
    assert document["arguments"]["batch['tokens']"]["held"] is True
    assert document["collectives"]


def test_explain_needs_only_the_file(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    code, out, err = run(capsys, "explain", str(plan_file))
    assert (code, err) == (0, "")
    assert "megatron: a plan for a mesh of x=2." in out
    assert "Collectives" in out
    assert "held: this sharding is fixed by a pin" in out
    code, out, _ = run(capsys, "explain", str(plan_file), "--json")
    assert code == 0
    assert json.loads(out) == json.loads(plan_file.read_text())


def test_a_plan_meets_its_step(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    code, out, _ = run(capsys, "explain", str(plan_file), *GPT, "--json", "--platform", "cpu")
    assert code == 0
    saved, fresh = json.loads(plan_file.read_text()), json.loads(out)
    assert fresh.pop("memory_bytes") > 0
    assert fresh == saved
    code, out, _ = run(capsys, "verify", str(plan_file))
    assert code == 0
    assert out.count("\n") == 1
    assert "outputs agree; the worst, `" in out


def test_a_plan_made_elsewhere_says_so(
    capsys: pytest.CaptureFixture[str], plan_file: Path, tmp_path: Path
) -> None:
    document = json.loads(plan_file.read_text())
    document["environment"]["device_kind"] = "NVIDIA H100"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    code, out, err = run(capsys, "explain", str(path), "bert")
    assert (code, out) == (1, "")
    elsewhere, other = err.splitlines()
    assert "was made elsewhere: device_kind NVIDIA H100, here cpu" in elsewhere
    assert other.endswith(
        "is a plan for `gpt --layers 1`, not for bert: leave the name out, or plan bert."
    )
    code, out, err = run(capsys, "explain", str(path))
    assert (code, err) == (0, "")
    assert "Made on NVIDIA H100 (cpu)" in out


def test_your_own_step_planned_and_verified(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trained_project.py").write_text(TRAINED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    target = "trained_project:make_step"
    code, out, _ = run(capsys, "template", "data_parallel", target, "--mesh", "2", "--json")
    assert code == 0
    assert json.loads(out)["arguments"]["x"]["spec"] == ["x"]
    assert not (tmp_path / "plan.json").exists()
    code, out, err = run(capsys, "template", "data_parallel", target, "--mesh", "2")
    assert code == 0
    assert "The compiled step needs" in out
    assert "Wrote plan.json." in err
    code, out, err = run(capsys, "verify", "plan.json", "--json")
    assert code == 0
    assert err == "cfp: plan.json was made for trained_project:make_step, which is called now.\n"
    document = json.loads(out)
    assert document["verified"] is True
    assert [output["path"] for output in document["outputs"]] == ["result"]
    assert all(output["error"] <= output["allowed"] for output in document["outputs"])


def test_own_virtual_devices(tmp_path: Path) -> None:
    """A process of its own, with nothing set: 6 devices, where the tests have 8."""
    (tmp_path / "own_project.py").write_text(TRAINED)
    unset = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    start = [sys.executable, "-c", "from cfp.cli import main; main()"]
    command = ["template", "data_parallel", "own_project:make_step", "--mesh", "3x2"]
    done = subprocess.run(
        [*start, *command, "--platform", "cpu", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mesh"] == {"x": 3, "y": 2}


def test_meshes() -> None:
    count = len(jax.devices())
    assert make_mesh((2, 2)).shape == {"x": 2, "y": 2}
    assert make_mesh((2,), "cpu", ["model"]).shape == {"model": 2}
    assert axis_names(5) == ("x", "y", "z", "a3", "a4")
    assert reading_mesh({"a": 100, "b": 2}).shape == {"a": 100, "b": 2}
    with pytest.raises(CfpError, match=f"needs {2 * count} devices and JAX has {count}"):
        make_mesh((2, count))
    with pytest.raises(CfpError, match="every axis needs at least one"):
        make_mesh((2, 0))
    with pytest.raises(CfpError, match="is the most"):
        reading_mesh({"x": 10**6, "y": 10**6})
    with pytest.raises(CfpError, match="no devices of platform `tpu`"):
        make_mesh((1,), "tpu")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["template", "megatrom", "gpt", "--mesh", "2"], 2, "'megatrom' is not one of"),
        (["template", "megatron", "gpt"], 2, "Missing option '--mesh'"),
        (["template", "data_parallel", "gpt", "--mesh", "7"], 1, "A mesh of 7 divides no dim"),
        (["template", "data_parallel", "gpt", "--mesh", "3"], 1, "this step does not divide"),
        (["template", "fsdp", "gpt", "--mesh", "64x64"], 1, "needs 4096 devices and JAX has"),
        (["template", "fsdp", "gpt", "--mesh", "2", "--pin", "batch"], 2, "is not a pin"),
        (["template", "fsdp", "gpt", "--mesh", "2", "--pin", "b=,x"], 2, "is not a pin"),
        (["template", "fsdp", "gpt", "--mesh", "2", "--pin", "b.*=x"], 1, "matches no argument"),
        (["template", "fsdp", "gpt", "--mesh", "2", "--pin", "key=x"], 1, "names 1 dims"),
        (["explain", "no_such_plan.json"], 1, "Cannot read no_such_plan.json: No such file"),
        (["verify", "no_such_plan.json", "gpt"], 1, "Cannot read no_such_plan.json"),
        (["verify", "no_such_plan.json"], 1, "Cannot read no_such_plan.json"),
        (["train"], 2, "Name a TARGET, as gpt, or a plan that was made for one with --plan."),
        (["compare", "--plans", "megatron"], 2, "Name a TARGET, as gpt, or a plan file"),
        (["compare", "gpt", "--plans", "megatron"], 2, "Give --mesh 2x4, or a plan file"),
    ],
)
def test_bad_input_to_plans(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    if code == 1:
        assert err.count("\n") == 1


def damage(document: dict[str, Any], place: str, value: Any) -> str:
    *way, last = place.split("/")
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format", "recipe", "is not a plan of cfp"),
        ("version", VERSION + 1, "Upgrade cfp"),
        ("mesh", {"x": 0}, "a size from 1 up per axis is expected"),
        ("mesh", {}, "a size from 1 up per axis is expected"),
        ("mesh", {"x": 10**12}, "is the most"),
        ("mesh", {"x": -2}, "a whole number from 0 up"),
        ("mesh", {"y": 2}, "names the mesh axis 'x'"),
        ("arguments", {"w": 7}, "`w` is 7"),
        ("arguments/key/shape", ["$(id)"], "`shape` is"),
        (
            "segments",
            [{"at": [5], "fingerprint": "", "state": None, "blocks": []}],
            "segments are missing",
        ),
        ("collectives", [[]], "`collectives` is"),
        ("environment", None, "`environment` is null"),
    ],
)
def test_damaged_plans(
    capsys: pytest.CaptureFixture[str],
    plan_file: Path,
    tmp_path: Path,
    place: str,
    value: Any,
    message: str,
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(damage(json.loads(plan_file.read_text()), place, value))
    code, out, err = run(capsys, "explain", str(path))
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged: it is not JSON"),
        (b"\xff\xfe{}", "is damaged: it is not JSON"),
        (b"[" * 100_000, "is damaged: it is not JSON"),
        (b"[]", "is not a plan of cfp: it holds a list"),
        (b"{}", "is not a plan of cfp: its `format` is not"),
    ],
)
def test_files_that_are_no_plans(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    for command in (["explain", str(path)], ["verify", str(path), "gpt"]):
        code, out, err = run(capsys, *command)
        assert (code, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1


def test_explain_alone_takes_no_model(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    code, out, err = run(capsys, "explain", str(plan_file), "--layers", "3")
    assert (code, out) == (2, "")
    assert "--layers needs a TARGET" in err


def test_the_snippets_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "plans.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(snippet, "plans.md", "exec"), names)
    assert names["plan"].collectives()


def test_every_command_shows_a_line_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("analyze", "profile", "template", "explain", "verify", "cache"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"    cfp {command} " in out
    _, out, _ = run(capsys, "template", "--help")
    assert all(name in out for name in templates.__all__)


def test_a_bug_of_ours_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("cfp.cli.analyze.load_target", boom)
    code, out, err = run(capsys, "analyze", "gpt")
    assert code == 3
    assert out == ""
    assert "RuntimeError: boom" in err
    assert "this is a bug of ours" in err
