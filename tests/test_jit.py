"""`cfp.jit` is called like `jax.jit`, plans once for arguments of some shapes, and computes what
the step computes. How plans are found is tested elsewhere: here most come from a template."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cfp
from cfp import planner, templates
from cfp.errors import CfpError, PlanWarning
from cfp.planning.kept import KeptPlans
from cfp.trace.calling import LiveObjects
from tests.first_contact.steps import STEPS
from tests.plan.steps import mesh_of, mlp_args, mlp_step
from tests.planning.jit_script import train


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The steps that were planned, by a template, in a folder of its own."""
    found: list[Any] = []

    def run_stages(task: Any, *_: object) -> Any:
        found.append(task.step)
        return templates.fsdp(task.step, *task.args, mesh=task.mesh)

    monkeypatch.setattr(planner, "run_stages", run_stages)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def same(got: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)


def test_the_second_run_of_a_script_measures_nothing(tmp_path: Path) -> None:
    """The first run is here, the second in a process of its own."""
    losses, step = train(str(tmp_path), mesh_of(2), isolate=False, progress=False)
    assert losses[-1] < losses[0]
    assert step.plan.evidence.programs > 0
    command = [sys.executable, "-m", "tests.planning.jit_script", str(tmp_path), "--stored"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    again = json.loads(ran.stdout)
    np.testing.assert_allclose(again["losses"], losses, rtol=1e-5)
    assert again["plan"] == step.plan.show()
    assert again["compiled"] <= 2, "the step, whose arguments lie elsewhere the second time"
    (file,) = KeptPlans.beside(tmp_path).files()
    assert cfp.load(file, mesh=mesh_of(2)).evidence == step.plan.evidence


def test_it_computes_what_the_step_computes(planned: list[Any]) -> None:
    step = cfp.jit(mlp_step, mesh=mesh_of(4), progress=False)
    with pytest.raises(CfpError, match="There is no plan yet: the first call finds it"):
        _ = step.plan
    expected = jax.jit(mlp_step)(*mlp_args())
    got = step(*mlp_args())
    same(got, expected)
    assert got[0]["up"].sharding.spec == step.plan.in_shardings[0]["up"].spec
    step(got[0], *mlp_args()[1:])
    step(jax.device_put(mlp_args()[0], jax.devices()[3]), *mlp_args()[1:])  # placed elsewhere
    assert len(planned) == 1
    assert step.__name__ == "mlp_step"
    assert "all-reduce" in step.lower(*mlp_args()).compile().as_text()


def test_other_shapes_are_another_program(planned: list[Any]) -> None:
    step = cfp.jit(mlp_step, mesh=mesh_of(2), progress=False)
    for rows in (16, 32, 16):
        same(step(*mlp_args(rows)), jax.jit(mlp_step)(*mlp_args(rows)))
    assert len(planned) == 2
    cfp.jit(mlp_step, mesh=mesh_of(2), progress=False)(*mlp_args())  # from the store
    assert len(planned) == 2


def scaled(params: Any, x: Any, y: Any, kind: str = "relu", *, rate: Any = 0.1) -> Any:
    def loss(params: Any) -> Any:
        hidden = getattr(jax.nn, kind)(x @ params["up"])
        return jnp.mean((hidden @ params["down"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads), value


@pytest.mark.parametrize("static", [{"static_argnums": 3}, {"static_argnames": "kind"}])
def test_static_and_keyword_arguments(planned: list[Any], static: dict[str, Any]) -> None:
    step = cfp.jit(scaled, mesh=mesh_of(2), progress=False, **static)
    params, x, y = mlp_args()
    del params["bias"]
    same(step(params, x, y), scaled(params, x, y))
    same(step(params, x, y, "tanh"), scaled(params, x, y, "tanh"))
    same(step(params, y=y, x=x, kind="tanh"), scaled(params, x, y, "tanh"))
    assert len(planned) == 2
    same(step(params, x, y, rate=0.5), scaled(params, x, y, rate=0.5))
    same(step(params, x, y, rate=0.2), scaled(params, x, y, rate=0.2))
    assert len(planned) == 3, "a keyword argument that is not static is data"
    assert "rate" in step.plan.argument_names
    with pytest.raises(CfpError, match="`kind` is static and is a list, which has no hash"):
        step(params, x, y, ["relu"])
    with pytest.raises(CfpError, match="cannot be called like this: missing a required argument"):
        step(params, x)


@pytest.mark.parametrize("jitted", [False, True])
def test_donation(planned: list[Any], jitted: bool) -> None:
    given: dict[str, Any] = {} if jitted else {"donate_argnums": 0}
    user = jax.jit(mlp_step, donate_argnums=0) if jitted else mlp_step
    step = cfp.jit(user, mesh=mesh_of(2), progress=False, **given)
    params, x, y = jax.tree.map(jnp.asarray, mlp_args())
    new, _ = step(params, x, y)
    step(new, x, y)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(new))
    assert not x.is_deleted()
    assert step.plan.known("test").analysis.graph.donated == {0, 1, 2}


@pytest.mark.parametrize("habit", ["nnx_live", "equinox_as_is"])
def test_what_libraries_call_a_step_with(planned: list[Any], habit: str) -> None:
    user = STEPS[habit](False)
    args, alone = user.args, []
    for _ in range(2):
        args, loss = user.carry(args, user.step(*args))
        alone.append(float(loss))
    user = STEPS[habit](False)
    step = cfp.jit(user.step, mesh=mesh_of(2), progress=False)
    args, found = user.args, []
    for _ in range(2):
        args, loss = user.carry(args, step(*args))
        found.append(float(loss))
    np.testing.assert_allclose(found, alone, rtol=2e-3)
    assert len(planned) == 1
    if habit == "nnx_live":
        args[0].eval()  # another program: no dropout
        step(*args)
        assert len(planned) == 2
    else:
        with pytest.raises(CfpError, match=r'filter_jit\(step, donate="all"\)'):
            cfp.jit(user.step, mesh=mesh_of(2), donate_argnums=1)(*args)


def test_nnx_objects_are_donated_and_taken_apart_once_a_call(
    planned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking NNX objects apart is most of what a call costs besides the step."""
    user = STEPS["nnx_live"](False)
    step = cfp.jit(user.step, mesh=mesh_of(2), progress=False, donate_argnums=(0, 1))
    step(*user.args)
    split, splits = LiveObjects._split, list[Any]()

    def counted(self: LiveObjects, args: Any) -> Any:
        splits.append(args)
        return split(self, args)

    monkeypatch.setattr(LiveObjects, "_split", counted)
    step(*user.args)
    assert len(splits) == 1
    donated = step.plan.known("test").analysis.graph.donated
    assert len(donated) == len(step.plan.arguments) - 1, "all but the tokens"


def test_a_plan_that_is_given(planned: list[Any], tmp_path: Path) -> None:
    plan = templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2))
    plan.save(tmp_path / "plan.json")
    for given in (plan, tmp_path / "plan.json"):
        step = cfp.jit(mlp_step, mesh=mesh_of(2), plan=given)
        same(step(*mlp_args()), jax.jit(mlp_step)(*mlp_args()))
        assert step.plan.name == "megatron"
    assert not planned
    with pytest.raises(CfpError, match="The plan is for another step"):
        step(*mlp_args(rows=8))
    with pytest.raises(CfpError, match="`budget` says how to find a plan, and `plan` gives one"):
        cfp.jit(mlp_step, mesh=mesh_of(2), plan=plan, budget=5)
    with pytest.raises(CfpError, match="`plan` is for another mesh"):
        cfp.jit(mlp_step, mesh=mesh_of(4), plan=plan)(*mlp_args())


def test_bad_input() -> None:
    with pytest.raises(CfpError, match="`step` is of type int, not a function"):
        cfp.jit(3, mesh=mesh_of(2))
    with pytest.raises(CfpError, match="`static_argnames` has `kin`, which the step does not take"):
        cfp.jit(scaled, mesh=mesh_of(2), static_argnames=["kin"])
    with pytest.raises(CfpError, match="`params` is static and cannot be donated"):
        cfp.jit(scaled, mesh=mesh_of(2), static_argnums=0, donate_argnums=0)


def test_as_a_decorator(planned: list[Any]) -> None:
    @cfp.jit(mesh=mesh_of(2), progress=False)
    def step(params: Any, x: Any, y: Any) -> Any:
        return mlp_step(params, x, y)

    same(step(*mlp_args()), mlp_step(*mlp_args()))
    assert len(planned) == 1


@pytest.mark.parametrize("damage", ["garbage", "foreign", "another mesh"])
def test_an_entry_that_is_no_plan_of_this_step_is_ignored(
    planned: list[Any], tmp_path: Path, damage: str
) -> None:
    cfp.jit(mlp_step, mesh=mesh_of(2), progress=False)(*mlp_args())
    (file,) = KeptPlans(tmp_path / "cfp" / "plans").files()
    if damage == "garbage":
        file.write_text(file.read_text()[:-100])
    else:
        mesh, args = (mesh_of(2), mlp_args(hidden=64)) if damage == "foreign" else (mesh_of(4), ())
        templates.megatron(mlp_step, *(args or mlp_args()), mesh=mesh).save(file)
    with pytest.warns(
        PlanWarning, match=r"\.json is ignored and the step is planned anew: "
    ) as said:
        cfp.jit(mlp_step, mesh=mesh_of(2), progress=False)(*mlp_args())
    assert len(said) == 1
    assert len(planned) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cfp.jit(mlp_step, mesh=mesh_of(2), progress=False)(*mlp_args())  # written anew
    assert len(planned) == 2


def test_a_folder_that_cannot_be(planned: list[Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CfpError, match=r"Cannot keep the plan in .*file/plans: Not a directory\."):
        cfp.jit(mlp_step, mesh=mesh_of(2), progress=False, cache_dir=tmp_path / "file")(*mlp_args())
