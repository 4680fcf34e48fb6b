"""A plan applied: donation, pytrees, placing, and plain `jax.jit` without cfp."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import cfp
from cfp import templates
from cfp.blocks.feedback import find_feedback
from cfp.errors import CfpError
from cfp.plan import Plan, build_plan
from cfp.plan.build import analyze_for
from cfp.trace import trace
from cfp.trace.evaluate import rebuild
from tests.foreign import MODELS, PLAIN
from tests.profile.cases import Untouched

from .steps import mesh_of, mlp_args, mlp_step, model


@pytest.fixture(scope="module")
def plan() -> Plan:
    return templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(4))


def test_donation_is_honoured() -> None:
    donating = jax.jit(mlp_step, donate_argnums=0)
    plan = templates.megatron(donating, *mlp_args(), mesh=mesh_of(4))
    step = plan.jit(donating)
    params, x, y = plan.place(*mlp_args())
    new, _ = step(params, x, y)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    assert not x.is_deleted()
    stats = step.lower(new, x, y).compile().memory_analysis()
    local = sum(np.prod(t.local((4,))) * 4 for t in plan.arguments if t.path.startswith("params"))
    assert stats.alias_size_in_bytes == local
    params, _ = step(new, x, y)  # what comes out goes in again
    plan.jit(donating, donate_argnums=())(params, x, y)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_what_is_placed_can_be_donated_and_the_users_arrays_stay() -> None:
    """Arrays of the first device, whose part of them would otherwise be shared, and arrays that lie
    as the plan wants them already."""
    donating = jax.jit(mlp_step, donate_argnums=0)
    given = jax.tree.map(jnp.asarray, mlp_args())
    plan = templates.data_parallel(donating, *given, mesh=mesh_of(2))
    step, placed = plan.jit(donating), plan.place(*given)
    again = plan.place(*placed)
    for args in (plan.place(*given), again):
        step(*args)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(args[0]))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((given, placed)))
    cfp.verify(donating, *given, plan=plan)


def test_nothing_is_donated_unasked(plan: Plan) -> None:
    args = plan.place(*mlp_args())
    plan.jit(mlp_step)(*args)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(args))


def test_plain_jit_with_the_plans_shardings(plan: Plan) -> None:
    step = jax.jit(mlp_step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    params, loss = step(*mlp_args())
    expected, expected_loss = jax.jit(mlp_step)(*mlp_args())
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for name, leaf in params.items():
        assert leaf.sharding == plan.out_shardings[0][name]
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-4, atol=1e-6)


def test_arrays_on_the_host_are_taken(plan: Plan) -> None:
    _, loss = plan.jit(mlp_step)(*mlp_args())
    np.testing.assert_allclose(loss, jax.jit(mlp_step)(*mlp_args())[1], rtol=1e-5)


def test_place(plan: Plan) -> None:
    params, x, _ = plan.place(*mlp_args())
    assert params["up"].sharding == plan.in_shardings[0]["up"]
    assert params["up"].addressable_shards[0].data.shape == (8, 8)
    np.testing.assert_array_equal(x, mlp_args()[1])
    shapes = jax.eval_shape(lambda: mlp_args())
    placed = plan.place(*shapes)
    assert placed[0]["up"].sharding == params["up"].sharding
    assert isinstance(placed[0]["up"], jax.ShapeDtypeStruct)
    with pytest.raises(CfpError, match="`place` got 1 arguments; the step takes 3: params, x, y"):
        plan.place(params)
    with pytest.raises(CfpError, match=r"`x` has shape \[4, 8\]; the plan is for \[16, 8\]"):
        plan.place(params, np.ones((4, 8), np.float32), x)
    with pytest.raises(CfpError, match=r"no argument `params\['w'\]`"):
        plan.place({"w": x}, x, x)


def test_a_step_called_with_other_shapes_is_refused(plan: Plan) -> None:
    with pytest.raises(
        CfpError, match=r"`x` is float32\[32, 8\]; the plan is for float32\[16, 8\]"
    ):
        plan.jit(mlp_step)(*mlp_args(rows=32))


def test_the_step_given_is_the_step_that_runs(plan: Plan) -> None:
    """The plan fits another step of the same arguments; it must not run the one it was made of."""

    def twice(params: Any, x: Any, y: Any) -> Any:
        params, loss = mlp_step(params, x, y)
        return params, loss * 2

    _, loss = plan.jit(mlp_step)(*mlp_args())
    _, double = plan.jit(twice)(*mlp_args())
    np.testing.assert_allclose(double, 2 * loss, rtol=1e-6)


def test_a_state_made_anew_is_traced_anew() -> None:
    """Its optimizer has functions of its own, which are part of its structure: `jax.jit` traces the
    step again. A state of another structure is refused by what differs."""

    def made(tx: Any) -> tuple[Any, Any]:
        params = {"w": np.ones((8, 4), np.float32)}
        return TrainState.create(apply_fn=None, params=params, tx=tx), np.ones((16, 8), np.float32)

    def step(state: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: ((x @ p["w"]) ** 2).mean())(state.params)
        return state.apply_gradients(grads=grads)

    plan = templates.data_parallel(step, *made(optax.sgd(0.1)), mesh=mesh_of(2))
    planned = plan.jit(step)
    state, x = made(optax.sgd(0.1))
    found, expected = planned(*plan.place(state, x)), step(state, x)
    assert found.tx is state.tx
    np.testing.assert_allclose(found.params["w"], expected.params["w"], rtol=1e-6)
    with pytest.raises(CfpError, match=r"The plan is for another step: .*`state.opt_state"):
        planned(*made(optax.adam(0.1)))


class Odd(NamedTuple):
    weights: Any
    nothing: None
    count: Any


def test_pytrees_are_kept() -> None:
    def step(state: Odd, batch: tuple[Any, float], *, scale: float = 2.0) -> dict[str, Any]:
        x, rate = batch
        (w,) = state.weights
        grad = jax.grad(lambda w: ((x @ w) ** 2).sum() * scale)(w)
        return {"state": Odd([w - rate * grad], None, state.count + 1), "done": (grad.sum(), None)}

    args = (Odd([jnp.ones((4, 8))], None, jnp.zeros((), jnp.int32)), (jnp.ones((8, 4)), 0.5))
    plan = templates.fsdp(step, *args, mesh=mesh_of(4))
    result = plan.jit(step)(*args)
    assert isinstance(result["state"], Odd)
    assert result["state"].nothing is None
    assert result["done"][1] is None
    assert result["state"].weights[0].sharding == plan.in_shardings[0].weights[0]
    assert not plan.in_shardings[0].weights[0].is_fully_replicated
    cfp.verify(step, *args, plan=plan)
    placed = plan.place(*args)
    jax.tree.map(np.testing.assert_array_equal, plan.jit(step)(*placed), result)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_state_goes_round(name: str) -> None:
    step, args = model(name)
    analysis = analyze_for(step, args, mesh_of(2))
    feedback = find_feedback(analysis.graph, analysis.grouping.parameters)
    assert feedback == {i: i for i in range(len(jax.tree.leaves(args[0])))}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt", {"scan": True}),
        ("llama", {"scan": True, "checkpoint": True}),
        ("bert", {"checkpoint": True}),
        ("moe", {"scan": True}),
    ],
)
def test_a_rebuilt_step_computes_the_same(name: str, options: dict[str, Any]) -> None:
    step, args = model(name, **options)
    check_rebuilt(step, args)


@pytest.mark.parametrize("name", sorted([*PLAIN, "equinox"]))
def test_rebuilt_foreign_steps(name: str) -> None:
    step, args = {**PLAIN, **MODELS}[name]()
    check_rebuilt(step, args)


def check_rebuilt(step: Any, args: Any) -> None:
    graph = trace(step, *args)
    got = jax.jit(lambda flat: rebuild(graph, flat, Untouched()))(jax.tree.leaves(args))
    expected = jax.tree.leaves(jax.jit(step)(*args))
    text = jax.jit(lambda flat: rebuild(graph, flat, Untouched())).lower(jax.tree.leaves(args))
    assert text.as_text().count("stablehlo.while") >= len(graph.loops), "loops stay loops"
    for path, a, b in zip(graph.output_paths, got, expected, strict=True):
        if jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-3, err_msg=path)
        else:
            np.testing.assert_array_equal(a, b, err_msg=path)


def test_wrong_strategies_are_refused() -> None:
    mesh = mesh_of(4)
    analysis = analyze_for(mlp_step, mlp_args(hidden=6), mesh)
    columns = [(1,), (0,)]
    with pytest.raises(
        CfpError, match="Block 0 cannot split `output features` into 4 parts: its 6"
    ):
        build_plan(mlp_step, analysis, mesh, columns, name="wrong")
    with pytest.raises(CfpError, match="1 strategies for 2 blocks"):
        build_plan(mlp_step, analysis, mesh, [(0,)], name="wrong")


def test_sequence_dims() -> None:
    step, args = model("llama", batch=2)
    mesh = mesh_of(2, 2)
    analysis = analyze_for(step, args, mesh, sequence=True)
    assert not analysis.batch_divides
    strategies = [block.strategies((2, 2)) for block in analysis.blocks]
    random = np.random.default_rng(1)
    chosen = [each[random.integers(len(each))] for each in strategies]
    plan = build_plan(step, analysis, mesh, chosen, name="sequence")
    cfp.verify(step, *args, plan=plan)
