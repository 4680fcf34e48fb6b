"""The snippet runs where there is no cfp, and its shardings are the plan's."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner

from cfp import analyze, templates
from cfp.cli import cli
from cfp.plan import Plan
from cfp.plan.assemble import assemble_plan
from cfp.profile.explore.streams import split_streams
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep
from tests.plan.steps import mesh_of, mlp_args, mlp_step
from tests.plan.test_recompute import arguments as residual_args
from tests.plan.test_recompute import step as residual_step

SCRIPT = """
import json, sys
sys.modules["cfp"] = None  # importing it is an error
import jax, jax.numpy as jnp, numpy as np
import shardings

def step(params, x, y):
    def loss(params):
        hidden = jax.nn.relu(x @ params["up"] + params["bias"])
        return jnp.mean((hidden @ params["down"] - y) ** 2)
    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

random = np.random.default_rng(0)
array = lambda *shape: random.normal(size=shape).astype(np.float32)
params = {"up": array(8, 32), "bias": array(32), "down": array(32, 8)}
args = params, array(16, 8), array(16, 8)
mesh = shardings.make_mesh()
given = shardings.in_shardings(mesh, *args)
returned = shardings.out_shardings(mesh, jax.eval_shape(step, *args))
jitted = jax.jit(step, in_shardings=given, out_shardings=returned)
_, loss = jitted(*jax.device_put(args, given))
text = lambda tree: [[str(s.spec), dict(s.mesh.shape)] for s in jax.tree.leaves(tree)]
print(json.dumps({"in": text(given), "out": text(returned), "loss": float(loss)}))
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2, 2))


def test_it_runs_without_cfp(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "shardings.py").write_text(plan.snippet())
    (tmp_path / "main.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "main.py")]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    for name, tree in (("in", plan.in_shardings), ("out", plan.out_shardings)):
        expected = [[str(s.spec), dict(s.mesh.shape)] for s in jax.tree.leaves(tree)]
        assert found[name] == expected
    np.testing.assert_allclose(found["loss"], mlp_step(*mlp_args())[1], rtol=1e-5)


def test_the_command(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)

    def said(*options: str) -> str:
        done = CliRunner().invoke(cli, ["export", str(file), *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert said() == plan.snippet()
    rules: dict[str, object] = {}
    exec(said("--format", "rules", "--argument", "params"), rules)
    assert rules["RULES"] == list(plan.to_rules("params"))
    assert rules["spec_of"]("up") == plan.in_shardings[0]["up"].spec  # type: ignore[operator]
    document = json.loads(said("--format", "json"))
    assert document["arguments"]["params['up']"] == [None, "y"]
    assert len(document["rules"]) == len(plan.to_rules())
    out = tmp_path / "shardings.py"
    assert said("--out", str(out)) == ""
    assert out.read_text() == plan.snippet()
    done = CliRunner().invoke(cli, ["export", str(file), "--argument", "params"])
    assert done.exit_code == 2


def with_streams(kind: Kind) -> Option:
    """Returns an option that splits the batch along the first axis and has split streams along the
    second."""
    sizes = [range(len(choices)) for choices in kind.strategies]
    for combo in itertools.product(*sizes):
        chosen = kind.chosen(Option(combo))
        if all(strategy[0] == 0 and strategy[1] != 0 for strategy in chosen):
            found = split_streams(kind, Option(combo))
            if found:
                return found[0]
    raise AssertionError("no split streams")


def test_it_says_by_hand_what_shardings_do_not(
    golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    """Levels and split streams; the file of the plan says the same, and it is Python."""
    args = residual_args()
    analysis = analyze(residual_step, *args, mesh_shape=(2, 2))
    kinds = find_kinds(analysis)
    keeps = [Keep.AS_WRITTEN, Keep.CONTRACTIONS, Keep.INPUTS]
    options = []
    for segment in analysis.segments:
        kind = kinds[segment.kind]
        plain = Option((0,) * len(kind.strategies))
        chosen = with_streams(kind) if any(kind.streams) else plain
        options.append(replace(chosen, keep=keeps[min(segment.index, 2)]))
    interfaces = find_interfaces(analysis, kinds)
    plan = assemble_plan(residual_step, analysis, mesh_of(2, 2), interfaces, options, name="both")
    text = plan.snippet()
    names: dict[str, object] = {}
    exec(text, names)
    assert names["AXES"] == {"x": 2, "y": 2}
    above = text[: text.index("import math")]
    golden("snippet_by_hand.txt", re.sub(r"(test_recompute\.py):\d+", r"\1:LINE", above))
    plan.save(tmp_path / "plan.json")
    said = CliRunner().invoke(cli, ["export", str(tmp_path / "plan.json")])
    assert said.stdout == text


def test_it_says_nothing_where_shardings_say_everything(plan: Plan) -> None:
    assert "By hand" not in plan.snippet()
