"""`cfp train`: the same losses with a plan and without, what is fed back, and what people read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from cfp import CfpError, analyze, models, templates
from cfp.cli import main
from cfp.cli import train as command
from cfp.devices import make_mesh
from cfp.layouts import Layouts
from cfp.plan.build import plan_of_layouts
from cfp.plan.plan import Predicted
from cfp.report.training import TrainingProgress
from cfp.training import Training, TrainStep, prepare, train

STEPS = 8
CONFIG = models.config("gpt", layers=1)
GPT = ("gpt", "--layers", "1")
OWN = """
import jax
import jax.numpy as jnp

def loss(params, x, scale):
    return jnp.mean(jnp.log(1 + scale * jnp.sum((x @ params["w"]) ** 2, -1)))

def step(params, x, scale):
    value, grads = jax.value_and_grad(loss)(params, x, scale)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"norm": value * 0, "loss": value}

def arguments(scale):
    w = jnp.linspace(-1, 1, 64).reshape(8, 8)
    return {"w": w, "unused": w}, jnp.ones((16, 8)), scale

def make_step():
    return step, arguments(1.0)

def breaks():
    return step, arguments(-1.0)

def shapes():
    return step, jax.eval_shape(lambda: arguments(1.0))

def forgets():
    return lambda x: jnp.sum(x @ x), (jnp.ones((8, 8)),)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names of a user's module, which the command can import too."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_training.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        names: dict[str, Any] = {}
        exec(compile(OWN, "own_training.py", "exec"), names)
        yield names


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    step, args = models.make_step(CONFIG, abstract=True)
    plan = templates.megatron(step, *args, mesh=make_mesh((4,)))
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    replace(plan, predicted=Predicted(0.001, 0.001, 0.0, 1)).save(path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments])
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def alone() -> Training:
    """A small GPT trained unsharded."""
    return trained(None)


def trained(plan: Any) -> Training:
    step, args = models.make_step(CONFIG)
    batches = command._batches(CONFIG, seed=0)
    found = train(step, args, plan=plan, steps=STEPS, batches=batches, tokens=256)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(args))
    return found


def test_loss_falls(alone: Training) -> None:
    assert [step.step for step in alone.steps] == list(range(1, STEPS + 1))
    assert alone.losses[-1] < 0.92 * alone.losses[0]
    assert (alone.fed_back, alone.as_given) == (("state",), ("batch", "key"))
    assert alone.loss_path == "result[1]['loss']"
    assert alone.step_s == np.median([step.seconds for step in alone.steps[1:]])
    assert alone.tokens_per_s == 256 / alone.step_s


def test_a_plan_file_trains_alike(
    capsys: pytest.CaptureFixture[str], alone: Training, plan_file: Path
) -> None:
    """Megatron on 4, through the command; the losses of the library without a plan."""
    arguments = (*GPT, "--plan", str(plan_file), "--steps", str(STEPS), "--json")
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    document = json.loads(out)
    np.testing.assert_allclose(document["losses"], alone.losses, rtol=1e-4)
    assert (document["plan"], document["mesh"]) == ("megatron", {"x": 4})
    assert len(document["step_seconds"]) == STEPS
    assert document["tokens_per_s"] == 256 / document["median_step_seconds"]
    assert document["tflops_per_s"] > 0
    assert document["predicted_step_seconds"] == 0.001
    assert (document["fed_back"], document["renewed"]) == (["state"], ["batch", "key"])
    assert document["interrupted"] is False
    assert err.count("\nstep ") == STEPS
    assert "step 8/8  loss " in err


def test_fsdp_trains_alike(alone: Training) -> None:
    step, args = models.make_step(CONFIG, abstract=True)
    found = trained(templates.fsdp(step, *args, mesh=make_mesh((4,))))
    np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-4)


def test_a_large_state_is_made_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    config = models.config("llama", layers=1, hidden=16, heads=2, vocab=16)
    step, (shapes, *rest) = models.make_step(config, abstract=True)
    mesh = make_mesh((2,))
    loop = prepare(step, shapes, *rest, plan=templates.fsdp(step, shapes, *rest, mesh=mesh))
    assert loop.donated == {0}
    eager = command._initial_state(config, 3, shapes, loop.shardings(0))
    monkeypatch.setattr(command, "EAGER_BYTES", 0)
    made = command._initial_state(config, 3, shapes, loop.shardings(0))
    for a, b, where in zip(*map(jax.tree.leaves, (eager, made, loop.shardings(0))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert b.sharding == where


def test_your_own_step(capsys: pytest.CaptureFixture[str], own: dict[str, Any]) -> None:
    code, out, err = run(capsys, "own_training:make_step", "--steps", "45")
    assert code == 0, err
    assert "`params` from the step before; `x`, `scale` as given." in err
    assert len(err.splitlines()) == 11  # the start, the first step, and every fifth
    assert "Trained 45 steps unsharded on 1 cpu device." in out
    assert "steps/s" in out
    assert "tokens/s" not in out
    step, args = own["make_step"]()
    expected = []
    for _ in range(3):
        params, metrics = step(*args)
        args = (params, *args[1:])
        expected.append(float(metrics["loss"]))
    found = train(step, own["arguments"](1.0), steps=3)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    assert found.loss_path == "result[1]['loss']"


def test_results_that_lie_otherwise_are_moved(own: dict[str, Any]) -> None:
    step, args = own["make_step"]()
    mesh = make_mesh((2,))
    analysis = analyze(step, *args, mesh_shape=(2,))
    whole = [(None,)] * len(analysis.graph.inputs)
    layouts = Layouts(tuple(whole), ((0,), (None,), (None,), (None,)), {}, {})
    plan = plan_of_layouts(step, analysis, mesh, layouts, name="by hand")
    loop = prepare(step, *args, plan=plan)
    assert loop.moved
    assert not loop.donated
    losses = [done.loss for done in loop.run(args, steps=3)]
    np.testing.assert_allclose(losses, train(step, args, steps=3).losses, rtol=1e-5)


def test_bad_input(
    capsys: pytest.CaptureFixture[str], own: dict[str, Any], plan_file: Path
) -> None:
    plan = ("--plan", str(plan_file))
    for arguments, expected, message in (
        ((*GPT, "--steps", "0"), 2, "0 is not in the range x>=1"),
        ((*GPT, "--seed", "-1"), 2, "-1 is not in the range"),
        (("gpt", "--layers", "2", *plan), 1, "The plan is for another step"),
        (("own_training:make_step", *plan), 1, "The plan is for another step"),
        (("own_training:make_step", "--layers", "2"), 1, "--layers is for built-in models"),
        (("own_training:shapes",), 1, "`params['unused']` is a shape: training needs arrays"),
        (("own_training:forgets",), 1, "No result of the step replaces"),
        ((*GPT, "--plan", "no_such.json"), 1, "Cannot read no_such.json"),
        (("gtp",), 1, "There is no model `gtp`"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (expected, ""), arguments
        assert message in err
        assert "Traceback" not in err


def test_a_loss_that_is_not_finite(capsys: pytest.CaptureFixture[str], own: dict[str, Any]) -> None:
    code, out, err = run(capsys, "own_training:breaks", "--json")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        "cfp: The loss is nan at step 1, so training stopped: lower the learning rate or check "
        "the data."
    )


def test_interrupted(
    capsys: pytest.CaptureFixture[str], own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = TrainingProgress.stepped

    def press(self: TrainingProgress, done: TrainStep) -> None:
        stepped(self, done)
        if done.step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingProgress, "stepped", press)
    code, out, err = run(capsys, "own_training:make_step", "--json")
    assert code == 1
    document = json.loads(out)
    assert (len(document["losses"]), document["interrupted"]) == (3, True)
    assert err.endswith("\ncfp: Interrupted after 3 of 50 steps.\n")
    code, out, err = run(capsys, "own_training:make_step")
    assert code == 1
    assert out.startswith("Trained 3 steps ")


def test_batches(own: dict[str, Any]) -> None:
    step, args = own["make_step"]()
    x = args[1]
    given = (args[0], jax.ShapeDtypeStruct(x.shape, x.dtype), args[2])

    def losses(*batches: dict[str, Any]) -> tuple[float, ...]:
        return train(step, given, steps=2, batches=batches).losses

    assert losses({"x": x}, {"x": x}) == train(step, args, steps=2).losses
    assert losses({"x": x}, {"x": 2 * x})[1] > losses({"x": x}, {"x": x})[1]
    for batches, message in (
        (({"x": x},), "The batches ended after 1 steps of 2"),
        (({"y": x},), "names `y`, which the step does not take: it takes params, x, scale"),
        (({"x": [x]},), "the step takes"),
        (({"x": x[:4]},), r"`x` has shape \[4, 8\]; the step is for \[16, 8\]"),
    ):
        with pytest.raises(CfpError, match=message):
            losses(*batches)
    with pytest.raises(CfpError, match="`steps` is 0"):
        train(step, args, steps=0)


def test_out_of_memory_says_so(own: dict[str, Any]) -> None:
    step, args = own["make_step"]()

    def call(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")

    loop = replace(prepare(step, *args), call=call)
    with pytest.raises(CfpError, match="needs more memory than a device has"):
        list(loop.run(args, steps=1))


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "    cfp train gpt --steps 50\n" in out
    assert "The other arguments stay as" in out
