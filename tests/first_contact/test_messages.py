"""What people are told who make the mistakes that people make: one sentence, with the way out.

`tests/golden/messages.txt` has them all; `pytest --update-goldens` rewrites it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import cfp
from cfp.cli import cli
from cfp.cli.targets import keep_target, load_target
from cfp.devices import make_mesh
from cfp.errors import CfpError
from tests.plan.steps import mesh_of

PROJECT = """\
import jax
import jax.numpy as jnp

def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)

def step(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)

def wrong(w, x):
    return w * json.loads("") * x

ARGS = (jnp.ones((8, 8)), jnp.ones((16, 8)))
SIZE = 8

def make_step():
    return step, ARGS

def wider():
    return step, (jnp.ones((8, 24)), jnp.ones((16, 8)))

def three():
    return step, *ARGS

def no_step():
    return SIZE, ARGS

def fails():
    return step, open("data.bin")

def step_fails():
    return wrong, ARGS

def forward():
    return loss, ARGS

def nothing():
    return (lambda w, x: None), ARGS
"""
FILES = {
    "messages_project.py": PROJECT,
    "messages_needs.py": "import jax\nimport no_such_package\n",
    "messages_syntax.py": "def make_step(:\n    pass\n",
    "package.json": '{"name": "a-website", "version": "1.0.0"}',
    "cut.json": '{"format": "cfp-plan", "vers',
}
STEP = "messages_project:make_step"
COMMANDS = f"""\
plan {STEP} --mesh 2 --memory-limit 12 GB
plan {STEP} --mesh 2 --budget 5 m
plan {STEP} --mesh 2 --memory-limit much
analyze {STEP} --mesh {"9" * 5000}
template fsdp {STEP} --mesh {"x".join("1" * 65)}
template megatron {STEP} --mesh 64
plan {STEP} --devices 1000000007
analyze messages_project:three
analyze messages_project:no_step
analyze messages_project:SIZE
analyze messages_project:mak_step
analyze messages_project:fails
analyze messages_project.py:make_step
analyze messages_needs:make_step
analyze messages_syntax:make_step
analyze no_such_project:make_step
analyze messages_project:step_fails
analyze messages_project:nothing
template data_parallel messages_project:forward --mesh 2
train messages_project:forward
analyze gtp
analyze {STEP} --layers 2
train
explain missing.json
explain package.json
explain cut.json
verify package.json gpt
train --plan /dev/zero
verify python.json
verify gpt.json bert
verify gpt.json gpt --size small --layers 4
train --plan gpt.json --batch 16
verify own.json messages_project:wider
compare --plans own.json --mesh 4
compare {STEP} --mesh 2 --plans megatron,plans/best.json
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's project, which is the working directory."""
    path = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (path / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.syspath_prepend(str(path))
        for target, name in ((STEP, "own.json"), ("gpt", "gpt.json")):
            step, args = load_target(target, {})
            plan = cfp.templates.fsdp(step, *args, mesh=mesh_of(2))
            replace(plan, target=keep_target(target, {})).save(name)
        document = json.loads((path / "own.json").read_text())
        (path / "python.json").write_text(json.dumps({**document, "target": None}))
        yield path


def said(words: list[str]) -> str:
    """What a command prints, and the code it ends with."""
    done = CliRunner().invoke(cli, words)
    if isinstance(done.exception, CfpError):
        sentence, code = f"cfp: {done.exception}", 1
    else:
        assert isinstance(done.exception, SystemExit), done.exception
        sentence, code = done.stderr.strip().splitlines()[-1], done.exit_code
    assert "\n" not in sentence
    assert len(sentence) < 320
    assert done.stdout == ""
    return f"    {sentence} [{code}]"


def test_commands(folder: Path, golden: Callable[[str, str], None]) -> None:
    lines = []
    for command in COMMANDS.splitlines():
        shown = command if len(command) < 90 else f"{command[:60]}..."
        lines += [f"cfp {shown}", said(command.split()), ""]
    golden("messages.txt", "\n".join(lines))


def step(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        return ((batch["x"] @ params["w"] + params["b"]) ** 2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def without_bias(params: Any, batch: Any) -> Any:
    return step({**params, "b": 0.0}, batch)["w"]


PARAMS = {"w": np.ones((8, 8), np.float32), "b": np.ones(8, np.float32)}
BATCH = {"x": np.ones((16, 8), np.float32)}


def test_python(
    golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mesh = mesh_of(2)
    plan = cfp.templates.fsdp(step, PARAMS, BATCH, mesh=mesh)
    less = {"w": PARAMS["w"]}
    calls: dict[str, Callable[[], object]] = {
        'cfp.plan(step, *args, mesh=mesh, beside="megatron")': lambda: cfp.plan(
            step, PARAMS, BATCH, mesh=mesh, beside="megatron"
        ),
        "cfp.plan(42, *args, mesh=mesh)": lambda: cfp.plan(42, PARAMS, BATCH, mesh=mesh),  # type: ignore[arg-type]
        "cfp.plan(step, *args, mesh=(2,))": lambda: cfp.plan(step, PARAMS, BATCH, mesh=(2,)),  # type: ignore[arg-type]
        'plan.place_argument("bach", batch)': lambda: plan.place_argument("bach", BATCH),
        "plan.place(params)": lambda: plan.place(PARAMS),
        'plan.place({"w": w}, batch)': lambda: plan.place(less, BATCH),
        'plan.place({**params, "c": c}, batch)': lambda: plan.place(
            {**PARAMS, "c": PARAMS["b"]}, BATCH
        ),
        'plan.place(params, {"x": x[:8]})': lambda: plan.place(PARAMS, {"x": BATCH["x"][:8]}),
        "plan.bind(without_bias, less, batch)": lambda: plan.bind(without_bias, less, BATCH),
        "cfp.load(plan, mesh=a mesh of 4)": lambda: cfp.load("fsdp.json", mesh=mesh_of(4)),
    }
    plan.save("fsdp.json")
    lines = []
    for call, make in calls.items():
        with pytest.raises(CfpError) as refused:
            make()
        assert "\n" not in str(refused.value)
        lines += [call, f"    {refused.value}", ""]
    golden("messages_python.txt", "\n".join(lines))


@pytest.mark.parametrize(("platform", "extra"), [("gpu", "jax[cuda13]"), ("tpu", "jax[tpu]")])
def test_a_platform_that_was_not_installed(platform: str, extra: str) -> None:
    before = jax.config.jax_platforms
    try:
        jax.config.update("jax_platforms", None)
        with pytest.raises(CfpError, match="this JAX was installed without it") as refused:
            make_mesh((2,), platform)
        assert f'pip install "{extra}", or use --platform cpu' in str(refused.value)
        jax.config.update("jax_platforms", "cpu")
        with pytest.raises(CfpError, match=r"JAX_PLATFORMS is `cpu`, which leaves it out\. Unset"):
            make_mesh((2,), platform)
    finally:
        jax.config.update("jax_platforms", before)
