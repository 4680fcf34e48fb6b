"""A step becomes a flat graph: calls inlined, loops spliced, roles and paths as the user knows."""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cfp.errors import CfpError
from cfp.models import config, make_step
from cfp.trace import LOOP_PRIMITIVES, Graph, Role, source_line, trace
from cfp.trace.evaluate import run_straight
from tests.foreign import MODELS


def roles(graph: Graph) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {role.value: Counter() for role in Role}
    for equation in graph.equations:
        found[equation.role.value][equation.primitive] += 1
    return found


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return (jnp.tanh(x @ w) ** 2).mean()


def sgd(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * gradient, value


W, X = jnp.ones((4, 6)), jnp.ones((8, 4))


def test_golden_text_of_a_small_step() -> None:
    assert (
        trace(lambda w, x: (jax.nn.relu(x @ w), None), W, X).show()
        == """\
arg w = %0:float32[4,6]
arg x = %1:float32[8,4]
%2:float32[8,6] = dot_general %1 %0 ; forward
%4:float32[8,6] = max %2 %3 ; forward
out result[0] = %4"""
    )


def test_roles_of_a_training_step() -> None:
    found = roles(trace(sgd, W, X))
    assert found["forward"]["dot_general"] == 1
    assert found["backward"]["dot_general"] == 1
    assert set(found["update"]) == {"mul", "sub"}


def test_counters_and_schedules_belong_to_the_update() -> None:
    optimizer = optax.adam(optax.linear_schedule(1e-2, 1e-3, 10))

    def step(w: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(loss)(w, x)
        updates, state = optimizer.update(gradient, state, w)
        return optax.apply_updates(w, updates), state

    graph = trace(step, W, optimizer.init(W), X)
    counts = [i for i, path in zip(graph.inputs, graph.input_paths, strict=True) if "count" in path]
    assert counts
    for value in counts:
        assert {graph.equations[r].role for r in graph.readers[value]} == {Role.UPDATE}


def test_a_gradient_inside_the_loss_is_forward() -> None:
    def energy(w: Any, x: Any) -> Any:
        return (jnp.tanh(x @ w)).sum()

    def force_loss(w: Any, x: Any) -> Any:
        return (jax.grad(energy, argnums=1)(w, x) ** 2).sum()

    graph = trace(lambda w, x: w - jax.grad(force_loss)(w, x), W, X)
    forward = roles(graph)["forward"]["dot_general"]
    assert forward == 2, "the product and its derivative, both needed by the loss"


def test_a_gradient_that_a_second_pass_needs_is_forward() -> None:
    """Sharpness-aware minimisation: a gradient, a perturbed forward pass, its gradient."""

    def step(w: Any, x: Any) -> Any:
        perturbed = w + 0.1 * jax.grad(loss)(w, x)
        return w - 0.1 * jax.grad(loss)(perturbed, x)

    found = roles(trace(step, W, X))
    assert found["forward"]["dot_general"] == 3
    assert found["backward"]["dot_general"] == 1
    assert set(found["update"]) == {"mul", "sub"}


def test_a_forward_function_has_no_other_role() -> None:
    assert {e.role for e in trace(loss, W, X).equations} == {Role.FORWARD}


class Batch(NamedTuple):
    tokens: Any
    mask: Any


def test_paths_dtypes_and_odd_leaves() -> None:
    def step(state: Any, batch: Batch, *rest: Any) -> Any:
        key, flag = rest
        noise = jax.random.normal(key, (2, 4), jnp.bfloat16)
        picked = state["table"][batch.tokens]
        return {"new": jnp.where(batch.mask[:, None], picked + noise, 0), "none": None, "f": flag}

    args = (
        {"table": jnp.ones((5, 4), jnp.bfloat16), "nothing": None},
        Batch(jnp.array([0, 4]), jnp.array([True, False])),
        jax.random.key(0),
        True,
    )
    graph = trace(step, *args)
    assert graph.input_paths == (
        "state['table']",
        "batch.tokens",
        "batch.mask",
        "args[2]",
        "args[3]",
    )
    assert graph.output_paths == ("result['f']", "result['new']")
    assert not graph.opaque()
    assert {str(graph.values[v].dtype) for v in graph.inputs} == {
        "bfloat16",
        "int32",
        "bool",
        "key<fry>",
    }


def test_source_lines_are_the_users() -> None:
    graph = trace(loss, W, X)
    (product,) = (e for e in graph.equations if e.primitive == "dot_general")
    assert source_line(product).startswith("test_trace.py:")
    assert source_line(product).endswith("(loss)")
    assert graph.describe(graph.inputs[0]) == "w"
    assert "dot_general at test_trace.py" in graph.describe(product.outputs[0])


def test_source_lines_are_not_a_librarys_where_the_user_has_one() -> None:
    """A loss of optax, and an error that the standard library raises: the user's line is named."""

    def lookup(w: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(w, labels).mean()

    graph = trace(lookup, W, np.zeros(W.shape[0], np.int32))
    named = {source_line(equation).partition(":")[0] for equation in graph.equations}
    assert named == {"test_trace.py"}
    with pytest.raises(CfpError, match=r"JSONDecodeError: Expecting value.*\(test_trace.py:\d+\)"):
        trace(lambda w: w * json.loads(""), W)


@pytest.mark.parametrize(
    ("name", "file"),
    [("nnx", "flax_nnx.py"), ("linen", "flax_linen.py"), ("equinox", "equinox_vmap.py")],
)
def test_source_lines_of_layers_are_those_that_call_them(name: str, file: str) -> None:
    """They are not the lines of Flax and Equinox in which the layers are written."""
    step, args = MODELS[name](layers=1, abstract=True)
    products = [e for e in trace(step, *args).equations if e.primitive == "dot_general"]
    assert len(products) > 10
    assert {source_line(product).partition(":")[0] for product in products} == {file}


def test_a_step_of_a_library_alone_names_the_innermost_line() -> None:
    """It does not name the line that asked for the analysis, which is the only one of the
    user's."""
    step = functools.partial(optax.softmax_cross_entropy_with_integer_labels, axis=-1)
    graph = trace(step, W, np.zeros(W.shape[0], np.int32))
    named = {source_line(equation).partition(":")[0] for equation in graph.equations}
    assert named == {"_classification.py"}


def test_a_step_that_returns_nothing() -> None:
    with pytest.raises(CfpError, match="The step returns nothing, so there is nothing to compute"):
        trace(lambda w: None, W)


def test_donated_arguments_are_known() -> None:
    step = jax.jit(sgd, donate_argnums=(0,))
    assert trace(step, W, X).donated == frozenset({0})
    assert trace(sgd, W, X).donated == frozenset()


def test_unknown_primitives_and_control_flow_are_opaque_not_errors() -> None:
    def step(w: Any, x: Any) -> Any:
        y = jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, x @ w)
        y = jax.lax.cond(y.sum() > 0, jnp.sin, jnp.cos, y)
        z = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
        return jnp.linalg.cholesky(z @ z.T + jnp.eye(8))

    opaque = {e.primitive for e in trace(step, W, X).opaque()}
    assert {"while", "cond", "pure_callback", "cholesky"} <= opaque


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_scan_over_layers_is_spliced_once(checkpoint: bool) -> None:
    step, args = make_step(config("llama", layers=5, scan=True, checkpoint=checkpoint))
    graph = trace(step, *args)
    forward, backward = graph.loops
    assert (forward.length, forward.reverse, forward.role) == (5, False, Role.FORWARD)
    assert (backward.length, backward.reverse, backward.twin) == (5, True, 0)
    assert graph.times(0) == 5
    products = [e for e in graph.equations if e.primitive == "dot_general" and e.loop == 0]
    assert len(products) == 9  # q k v scores mix out gate up down
    if checkpoint:
        assert any(e.recomputed for e in graph.role(Role.BACKWARD))


def test_scans_without_a_contraction_and_in_the_update_stay_whole() -> None:
    def cumulate(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(6), x @ w)[1]

    graph = trace(cumulate, W, X)
    assert not graph.loops
    assert [e.primitive for e in graph.opaque()] == ["scan"]

    def newton_schulz(w: Any, x: Any) -> Any:
        gradient = jax.grad(loss)(w, x)
        body = lambda c, _: (1.5 * c - 0.5 * c @ c.T @ c, None)  # noqa: E731
        return w - jax.lax.scan(body, gradient, None, length=3)[0]

    graph = trace(newton_schulz, W, X)
    assert not graph.loops
    assert [(e.primitive, e.role) for e in graph.opaque()] == [("scan", Role.UPDATE)]


def test_micro_batches_in_a_loop_keep_their_passes() -> None:
    def step(w: Any, xs: Any) -> Any:
        def body(total: Any, x: Any) -> Any:
            return total + jax.grad(loss)(w, x), None

        total, _ = jax.lax.scan(body, jnp.zeros_like(w), xs)
        return w - total

    graph = trace(step, W, jnp.ones((3, 8, 4)))
    (loop,) = graph.loops
    assert loop.length == 3
    inside = {e.role for e in graph.equations if e.loop == 0}
    assert inside == {Role.FORWARD, Role.BACKWARD}
    (last,) = (e for e in graph.equations if e.primitive == "sub" and e.loop is None)
    assert last.role is Role.UPDATE


def test_checkpoint_keeps_its_barrier() -> None:
    layer = jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w)))
    graph = trace(jax.grad(lambda w, x: layer(w, x).sum()), W, X)
    assert [e.primitive for e in graph.equations].count("optimization_barrier") == 1
    assert roles(graph)["backward"]["dot_general"] == 2  # recomputed, and the gradient


def test_evaluating_the_equations_gives_the_step() -> None:
    step, args = make_step(config("gpt", layers=1, hidden=16, seq=8, batch=2))
    graph = trace(step, *args)
    assert not any(e.primitive in LOOP_PRIMITIVES for e in graph.equations)

    def run(*flat: Any) -> list[Any]:
        env = {**graph.constants, **dict(zip(graph.inputs, flat, strict=True))}
        run_straight(graph.equations, env)
        return [env[v] for v in graph.outputs]

    found = jax.jit(run)(*jax.tree.leaves(args))
    expected = jax.tree.leaves(jax.jit(step)(*args))
    for path, a, b in zip(graph.output_paths, found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=path)


def test_literals_of_equal_value_and_other_sign_or_type_are_told_apart() -> None:
    def step(w: Any, x: Any) -> Any:
        y = x @ w
        return y * 0.0, y * -0.0, jnp.float16(0.0) * y.astype(jnp.float16)

    graph = trace(step, W, X)
    run = lambda env: run_straight(graph.equations, env)  # noqa: E731
    env = {**graph.constants, **dict(zip(graph.inputs, (W, X), strict=True))}
    run(env)
    signs = [bool(np.signbit(np.asarray(env[v])).any()) for v in graph.outputs]
    assert signs == [False, True, False]
