"""Arguments as users pass them: where they lie changes nothing, what is static is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import cfp
from cfp.errors import CfpError
from cfp.trace import trace
from tests.first_contact.meshes import mesh

ROWS, FEATURES = 8, 4


def plain_step(w: Any, x: Any) -> Any:
    grads = jax.grad(lambda w: ((x @ w).reshape(2, -1) ** 2).mean())(w)
    return w - 0.1 * grads


def plain_args() -> tuple[Any, Any]:
    return np.eye(FEATURES, dtype=np.float32), np.ones((ROWS, FEATURES), np.float32)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_trace_does_not_depend_on_where_arguments_lie(kind: AxisType) -> None:
    expected = trace(plain_step, *plain_args()).show()
    on = mesh((4,), kind)
    w, x = plain_args()
    placed = (
        jax.device_put(w, NamedSharding(on, P())),
        jax.device_put(x, NamedSharding(on, P("data"))),
    )
    assert trace(plain_step, *placed).show() == expected
    shapes = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), placed
    )
    assert trace(plain_step, *shapes).show() == expected
    with jax.set_mesh(on):
        assert trace(plain_step, *placed).show() == expected
        assert trace(plain_step, *plain_args()).show() == expected


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_steps_own_constraints_give_way(kind: AxisType) -> None:
    on = mesh((4,), kind)

    def constrained(w: Any, x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh((4,), AxisType.Auto), P("data")))
        return plain_step(w, x)

    graph = trace(constrained, *plain_args())
    assert graph.own_constraints == 1
    assert graph.show() == trace(plain_step, *plain_args()).show()
    plan = cfp.templates.megatron(constrained, *plain_args(), mesh=on)
    w, x = plan.place(*plain_args())
    np.testing.assert_allclose(plan.jit(constrained)(w, x), plain_step(*plain_args()), rtol=1e-6)
    cfp.verify(constrained, *plain_args(), plan=plan)


def test_constraints_without_a_mesh_mean_the_current_one() -> None:
    def constrained(w: Any, x: Any) -> Any:
        return plain_step(w, jax.lax.with_sharding_constraint(x, P("data")))

    on = mesh((4,), AxisType.Auto)
    with jax.set_mesh(on):
        plan = cfp.templates.megatron(constrained, *plain_args(), mesh=on)
        assert plan.known("test").analysis.graph.own_constraints == 1
        cfp.verify(constrained, *plain_args(), plan=plan)


def test_a_step_jitted_with_explicit_shardings() -> None:
    on = mesh((4,), AxisType.Explicit)

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

    jitted = jax.jit(step, in_shardings=(NamedSharding(on, P()), NamedSharding(on, P("data"))))
    plan = cfp.templates.data_parallel(jitted, *plain_args(), mesh=on)
    np.testing.assert_allclose(plan.jit(jitted)(*plain_args()), step(*plain_args()), rtol=1e-6)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_planned_step_composes(kind: AxisType) -> None:
    """Inside the user's own program, and with the user's arrays on the same mesh."""
    on = mesh((4,), kind)
    plan = cfp.templates.data_parallel(plain_step, *plain_args(), mesh=on)
    planned = plan.jit(plain_step)
    w, x = plan.place(*plain_args())
    mine = jax.device_put(np.ones((FEATURES, FEATURES), np.float32), NamedSharding(on, P()))
    with jax.set_mesh(on):
        both = jax.jit(lambda w, x: planned(w, x) + mine)(w, x)
        apart = planned(w, x) + mine
    np.testing.assert_allclose(both, apart, rtol=1e-6)
    np.testing.assert_allclose(both, plain_step(*plain_args()) + 1, rtol=1e-6)


class Model(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.up = nnx.Linear(FEATURES, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.down = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(self.dropout(nnx.relu(self.up(x))))


def loss_fn(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean()


def both_held(model: Any, optimizer: Any, x: Any) -> Any:
    loss, grads = nnx.value_and_grad(loss_fn)(model, x)
    optimizer.update(grads)
    return loss


def returned(model: Any, optimizer: Any, x: Any) -> Any:
    loss, grads = nnx.value_and_grad(loss_fn)(model, x)
    optimizer.update(model, grads)
    return model, {"loss": loss, "average": nnx.metrics.Average("loss")}


@pytest.mark.parametrize(
    ("step", "optimizer"),
    [
        (both_held, lambda model: nnx.ModelAndOptimizer(model, optax.sgd(0.1))),
        (returned, lambda model: nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)),
    ],
)
def test_live_objects_are_updated_as_by_their_library(
    step: Callable[..., Any], optimizer: Callable[[Any], Any]
) -> None:
    """An optimizer that holds the model too, and a step that returns what it was given."""
    x = np.ones((ROWS, FEATURES), np.float32)
    alone, model = Model(), Model()
    holds = optimizer(alone)
    nnx.jit(step)(alone, holds, x)
    args = model, optimizer(model), x
    plan = cfp.templates.data_parallel(step, *args, mesh=mesh((2,), AxisType.Explicit))
    result = plan.jit(step)(*plan.place(*args))
    np.testing.assert_allclose(model.up.kernel[...], alone.up.kernel[...], rtol=1e-5)
    assert int(model.dropout.rngs.count[...]) == int(alone.dropout.rngs.count[...])
    if step is returned:
        assert result[0] is model
        assert isinstance(result[1]["average"], nnx.metrics.Average)


def test_live_objects_made_anew_are_traced_anew() -> None:
    """An optimizer that is made again has functions of its own, and a model that is evaluated
    drops nothing: `nnx.jit` traces both again, and so does a planned step."""
    x = np.ones((ROWS, FEATURES), np.float32)

    def made() -> tuple[Any, Any, Any]:
        model = Model()
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), x

    plan = cfp.templates.data_parallel(returned, *made(), mesh=mesh((2,), AxisType.Auto))
    planned, alone = plan.jit(returned), nnx.jit(returned)
    again, expected = made(), made()
    for evaluated in (False, True, False):
        for model in (again[0], expected[0]):
            model.eval() if evaluated else model.train()
        loss = planned(*again)[1]["loss"]
        np.testing.assert_allclose(loss, alone(*expected)[1]["loss"], rtol=1e-5)
    np.testing.assert_allclose(again[0].up.kernel[...], expected[0].up.kernel[...], rtol=1e-5)
    assert len(planned._programs) == 3  # the one that was planned, and two that came later


def test_live_objects_of_another_step_are_refused() -> None:
    model, x = Model(), np.ones((ROWS, FEATURES), np.float32)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    plan = cfp.templates.data_parallel(
        returned, model, optimizer, x, mesh=mesh((2,), AxisType.Auto)
    )
    adam = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    with pytest.raises(CfpError, match="The plan is for another step"):
        plan.jit(returned)(model, adam, x)


def test_a_step_that_makes_variables_is_refused() -> None:
    def grows(model: Any, x: Any) -> Any:
        model.more = nnx.Param(jnp.ones(3))
        return loss_fn(model, x)

    with pytest.raises(CfpError, match="changes what its NNX objects are made of"):
        trace(grows, Model(), np.ones((ROWS, FEATURES), np.float32))


def test_static_leaves_belong_to_the_program() -> None:
    model = eqx.nn.MLP(FEATURES, 1, 8, 1, key=jax.random.key(0))

    def step(model: Any, x: Any, rate: Any) -> Any:
        grads = eqx.filter_grad(lambda m: (jax.vmap(m)(x) ** 2).mean())(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -rate * g, grads))

    x = np.ones((ROWS, FEATURES), np.float32)
    plan = cfp.templates.megatron(step, model, x, 0.1, mesh=mesh((2,), AxisType.Auto))
    planned = plan.jit(step)
    for rate in (0.1, 0.2):  # a number beside a module is data, as for `jax.jit`
        found = planned(model, x, rate)
        assert found.activation is model.activation
        expected = step(model, x, rate)
        np.testing.assert_allclose(found.layers[0].weight, expected.layers[0].weight, rtol=1e-5)
    other = eqx.tree_at(lambda m: m.activation, model, jax.nn.gelu)
    found, expected = planned(other, x, 0.1), step(other, x, 0.1)  # another program, traced anew
    assert found.activation is jax.nn.gelu
    np.testing.assert_allclose(found.layers[0].weight, expected.layers[0].weight, rtol=1e-5)
    wider = eqx.nn.MLP(FEATURES, 1, 16, 1, key=jax.random.key(0))
    with pytest.raises(CfpError, match=r"`model.layers\[0\].weight` is float32\[8,4\] in the plan"):
        planned(wider, x, 0.1)
    filtered = eqx.filter_jit(step)
    graph = trace(filtered, model, x, 0.1)
    assert "rate" not in graph.input_paths  # static, as for `eqx.filter_jit`


def test_static_values_beside_modules_stay_where_they_are(tmp_path: Path) -> None:
    """`eqx.filter_jit` takes numbers and texts as parts of the program, and so does `place`, even
    of a plan that has not met its step."""

    @eqx.filter_jit
    def step(model: Any, data: Any, mode: str) -> Any:
        assert mode == "train"
        grads = eqx.filter_grad(lambda m: (jax.vmap(m)(data["x"]) ** 2).mean())(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -data["rate"] * g, grads))

    model = eqx.nn.MLP(FEATURES, 1, 8, 1, key=jax.random.key(0))
    args = model, {"x": np.ones((ROWS, FEATURES), np.float32), "rate": 0.1}, "train"
    on = mesh((2,), AxisType.Explicit)
    cfp.templates.megatron(step, *args, mesh=on).save(tmp_path / "plan.json")
    plan = cfp.load(tmp_path / "plan.json", mesh=on)
    placed = plan.place(*args)
    assert placed[1]["rate"] == 0.1
    assert placed[2] == plan.place_argument("mode", "train") == "train"
    assert placed[1]["x"].sharding.mesh == on
    found, expected = plan.jit(step)(*placed), step(*args)
    np.testing.assert_allclose(found.layers[0].weight, expected.layers[0].weight, rtol=1e-5)
    with pytest.raises(CfpError, match=r"The plan has no argument `data\['y'\]`"):
        plan.place(model, {**args[1], "y": args[1]["x"]}, "train")


def test_a_step_that_trains_nothing_is_said_so() -> None:
    def only_norms(w: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
        return loss, jnp.linalg.norm(grads)

    plan = cfp.templates.data_parallel(only_norms, *plain_args(), mesh=mesh((2,), AxisType.Auto))
    with pytest.warns(cfp.PlanWarning, match="it trains nothing: return the new parameters"):
        cfp.verify(only_norms, *plain_args(), plan=plan)
