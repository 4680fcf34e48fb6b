"""A sample of `python -m bench.verify` that runs with the tests, and proof that verify can fail."""

import itertools
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bench.verify.case import Case
from bench.verify.cases import MESHES, TEMPLATES
from bench.verify.subject import Subject, make_mesh

from cfp import models
from cfp.errors import CfpError
from cfp.plan import bound
from cfp.plan.verify import Reference, Rounding, compare, run_alone, verify
from cfp.templates import data_parallel
from cfp.trace import Role, trace

SEED = 7
LAYERS = {
    "bert": 1,
    "gpt": 1,
    "moe": 2,  # one dense, one of experts
    "llama": 1,
    "gpt_scan_checkpoint": 2,
    "hf_gpt2": 1,
    "nnx": 1,
    "equinox": 1,
    "accumulation": 2,
}


def sample() -> dict[str, list[Case]]:
    """A template and two random plans of each step, meshes and templates in turn."""
    templates, meshes = itertools.cycle(TEMPLATES), itertools.cycle(MESHES)
    # an odd number of them: both kinds of random plans come to all
    random_meshes = itertools.cycle(("2", "2x2", "4", "2x2x2", "8", "1x4", "2x2"))
    return {
        step: [Case(step, next(meshes), next(templates))]
        + [Case(step, next(random_meshes), f"random-{i}", SEED) for i in range(2)]
        for step in LAYERS
    }


def test_the_sample_covers_every_template_and_mesh() -> None:
    cases = [case for cases in sample().values() for case in cases]
    assert {case.plan for case in cases if not case.is_random} == set(TEMPLATES)
    assert {case.mesh for case in cases if not case.is_random} == set(MESHES)
    assert {case.mesh for case in cases if case.is_random} == {*MESHES, "2x2x2", "1x4"}


@pytest.mark.parametrize("step", LAYERS)
def test_plans_compute_what_the_step_computes(step: str) -> None:
    subject = Subject.make(step, layers=LAYERS[step])  # one reference for all its plans
    results = [subject.check(case) for case in sample()[step]]
    wrong = [f"{r.case}: {r.status}: {r.message}\n{r.detail}" for r in results if r.status != "ok"]
    assert not wrong, "\n".join(wrong)
    assert all(result.round_trip is not False for result in results)


# Verify can fail, as this shows: a small step with floats, an integer and a key among its results.

OPTIMIZER = optax.adamw(1e-2)


def small_step(state, batch, key):
    def loss_fn(params):
        hidden = jnp.tanh(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    seen = state["seen"] + batch["x"].shape[0]
    return {"params": params, "optimizer": optimizer, "seen": seen}, jax.random.split(key)[0], loss


@lru_cache
def small():
    """The step, its reference and a plan for it."""
    rng = np.random.default_rng(0)

    def noise(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = {"up": noise(16, 32), "down": noise(32, 8)}
    state = {"params": params, "optimizer": OPTIMIZER.init(params), "seen": jnp.int32(0)}
    args = state, {"x": noise(8, 16), "y": noise(8, 8)}, jax.random.key(0)
    plan = data_parallel(small_step, *args, mesh=make_mesh((2,)))
    reference = run_alone(small_step, args, plan.bound.analysis.graph, jax.devices()[0])
    return reference, plan


def refusal(reference: Reference, plan) -> str:
    with pytest.raises(CfpError) as raised:
        reference.verify(plan)
    return str(raised.value)


def spoil_output(monkeypatch, path, spoil) -> None:
    """The sharded step gives `spoil(output)` for one output."""
    rebuild = bound.rebuild

    def spoilt(graph, *rest):
        outputs = rebuild(graph, *rest)
        at = graph.output_paths.index(path)
        outputs[at] = spoil(outputs[at])
        return outputs

    monkeypatch.setattr(bound, "rebuild", spoilt)


def test_a_right_plan_passes() -> None:
    reference, plan = small()
    verified = reference.verify(plan)
    assert len(verified.outputs) == len(reference.paths)
    assert verified.worst.ratio <= 1


@pytest.mark.parametrize(
    ("path", "spoil"),
    [
        ("result[2]", lambda x: x * 1.001),
        ("result[0]['params']['up']", lambda x: x * 1.001),
        ("result[0]['params']['down']", lambda x: x.at[3, 2].mul(1.01)),
        ("result[0]['optimizer'][0].nu['up']", lambda x: x.at[0, 0].mul(1.01)),
        ("result[0]['params']['up']", lambda x: x.at[0, 0].set(jnp.nan)),
        ("result[0]['params']['up']", lambda x: x.at[0, 0].set(jnp.inf)),
        ("result[0]['seen']", lambda x: x + 1),
        ("result[0]['optimizer'][0].count", lambda x: x - 1),
        ("result[1]", lambda key: jax.random.fold_in(key, 1)),
    ],
    ids=[
        "scaled loss",
        "scaled parameter",
        "one element of a parameter",
        "one element of a moment",
        "a NaN",
        "an infinity",
        "an integer",
        "a counter",
        "a key",
    ],
)
def test_a_wrong_output_is_named(monkeypatch, path, spoil) -> None:
    reference, plan = small()
    assert path in reference.paths
    spoil_output(monkeypatch, path, spoil)
    message = refusal(reference, plan)
    assert f"`{path}`" in message
    assert f"1 of {len(reference.paths)} outputs" in message


def lookup_step(state, tokens, scale):
    """Embeds tokens, of a type that is not signed; `scale` may be below zero."""

    def loss_fn(params):
        rows = jnp.take(params["table"], tokens, axis=0) @ params["out"]
        return jnp.mean(rows**2)

    loss, grads = jax.value_and_grad(loss_fn)(state)
    state = jax.tree.map(lambda w, g: w - 0.1 * g, state, grads)
    return state, loss, jnp.log(scale)


def lookup_args(scale):
    shape = jax.ShapeDtypeStruct
    state = {"table": shape((40, 16), jnp.float32), "out": shape((16, 8), jnp.float32)}
    return state, shape((8, 4), jnp.uint32), jnp.asarray(scale, jnp.float32)


def test_shapes_of_tokens_without_sign_are_filled_with_rows_that_exist() -> None:
    args = lookup_args([1.0, 2.0])
    plan = data_parallel(lookup_step, *args, mesh=make_mesh((2,)))
    verified = verify(lookup_step, *args, plan=plan)
    assert not verified.not_finite
    assert "NaN" not in verified.show()


def test_what_is_not_finite_is_reported() -> None:
    args = lookup_args([1.0, -2.0, 0.0])
    plan = data_parallel(lookup_step, *args, mesh=make_mesh((2,)))
    verified = verify(lookup_step, *args, plan=plan)
    (found,) = verified.not_finite
    assert (found.path, found.not_finite, found.size) == ("result[2]", 2, 3)
    assert "NaN or infinite" in verified.show()
    assert "`result[2]` 2 of 3 numbers" in verified.show()


def test_an_output_of_which_nothing_is_finite_cannot_be_verified() -> None:
    args = lookup_args([-1.0, -2.0])
    plan = data_parallel(lookup_step, *args, mesh=make_mesh((2,)))
    with pytest.raises(CfpError, match=r"Nothing of `result\[2\]` .* Pass real arguments"):
        verify(lookup_step, *args, plan=plan)


@pytest.mark.parametrize("parameter", ["up", "down"])
def test_a_gradient_summed_on_half_the_devices_is_named(monkeypatch, parameter) -> None:
    """One of two devices is left out of the all-reduce. Adam's first step hides it from the
    parameter, not from the moments."""
    reference, plan = small()
    graph = plan.bound.analysis.graph
    shape = reference.args[0]["params"][parameter].shape
    (gradient,) = {
        value
        for equation in graph.role(Role.UPDATE)
        for value in equation.inputs
        if graph.values[value].shape == shape
        and graph.values[value].producer is not None
        and graph.equations[graph.values[value].producer].role is Role.BACKWARD
    }
    whole = bound.Constrain.value

    def halved(self, value, array):
        array = whole(self, value, array)
        return array / 2 if value == gradient else array

    monkeypatch.setattr(bound.Constrain, "value", halved)
    message = refusal(reference, plan)
    assert f"u['{parameter}']` differs" in message  # mu or nu


# `compare`, one output at a time.

X = np.array([1.0, -2.0, 4.0], np.float32)
EPS = float(np.finfo(np.float32).eps)


def ratio(expected, got, moved=None) -> float:
    others = [expected if moved is None else moved]
    return compare("x", expected, got, others, Rounding(EPS, EPS)).ratio


@pytest.mark.parametrize(("dtype", "factor"), [("float32", 1.01), ("bfloat16", 0.5)])
def test_a_scaled_gradient_is_seen_in_every_type(dtype: str, factor: float) -> None:
    """The first moment of every parameter, though bfloat16 rounds a hundred thousand times more."""
    step, args = models.make_step(models.config("gpt", layers=1, dtype=dtype))
    reference = run_alone(step, args, trace(step, *args), jax.devices()[0])
    moments = 0
    for path, x, moved in zip(
        reference.paths, reference.expected, zip(*reference.moved, strict=True), strict=True
    ):
        if ".mu" in path:
            scaled = x * np.asarray(factor, x.dtype)
            assert compare(path, x, scaled, moved, reference.rounding).ratio > 1, path
            moments += 1
    assert moments > 10


def test_rounding_is_allowed_and_more_is_not() -> None:
    assert ratio(X, X) == 0
    assert 0 < ratio(X, X * np.float32(1 + 8 * EPS)) < 1
    assert ratio(X, X * np.float32(1.001)) > 1


def test_what_moved_arguments_change_is_allowed() -> None:
    got = X + np.float32(0.01)
    assert ratio(X, got) > 1
    assert ratio(X, got, moved=X + np.float32(0.02)) < 1
    assert ratio(X, got, moved=X + np.float32(0.002)) > 1
    assert ratio(X, X * 20, moved=X * np.float32(3)) < 1  # noise: digits say nothing


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_be_so_on_both_sides(odd) -> None:
    spoilt = X.copy()
    spoilt[1] = odd
    assert ratio(spoilt, spoilt) == 0
    assert ratio(X, spoilt) == np.inf
    assert ratio(spoilt, X) == np.inf
    other = spoilt.copy()
    other[1] = 7.0 if np.isnan(odd) else -odd
    assert ratio(spoilt, other) == np.inf
    elsewhere = X.copy()
    elsewhere[2] = odd
    assert ratio(spoilt, elsewhere) == np.inf


def test_the_rest_is_compared_where_something_is_not_finite() -> None:
    expected = np.array([np.nan, 1.0, np.inf, 2.0], np.float32)
    assert ratio(expected, expected * np.float32(1 + 8 * EPS)) < 1
    assert ratio(expected, expected * np.float32(1.001)) > 1


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_moved_arguments_break_allows_nothing_more(odd) -> None:
    moved = X.copy()
    moved[0] = odd
    assert ratio(X, X, moved=moved) == 0
    assert ratio(X, X * np.float32(1.001), moved=moved) > 1


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.bool_])
def test_integers_are_compared_exactly(dtype) -> None:
    expected = np.array([0, 1, 1], dtype)
    got = np.array([0, 1, 0], dtype)
    assert ratio(expected, expected) == 0
    assert ratio(expected, got) == np.inf
    large = np.array([2**31 - 1], np.int32)
    assert ratio(large, large - 1) == np.inf


def test_keys_are_compared_exactly() -> None:
    key = jax.random.key(3)
    assert ratio(key, jax.random.key(3)) == 0
    assert ratio(key, jax.random.key(4)) == np.inf


def test_no_elements_agree() -> None:
    none = np.zeros((0, 3), np.float32)
    assert ratio(none, none) == 0


def test_complex_numbers_differ_in_either_part() -> None:
    expected = X.astype(np.complex64)
    assert ratio(expected, expected) == 0
    assert ratio(expected, expected + np.complex64(0.01j)) > 1
