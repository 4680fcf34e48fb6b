"""The snippet runs where there is no cfp, and its shardings are the plan's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner

from cfp import templates
from cfp.cli import cli
from cfp.plan import Plan
from tests.plan.steps import mesh_of, mlp_args, mlp_step

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
