"""The same model written in other ways gives the same numbers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfp import models
from cfp.models import train

from .conftest import TINY, quick_jit


def stack_layers(params):
    """The parameters of an unrolled model as one with `scan` has them."""

    def stack(layers):
        return jax.tree.map(lambda *xs: np.stack(xs), *layers)

    layers = params["layers"]
    if "gate" in layers[1] and "gate" not in layers[0]:  # dense and expert layers
        return {**params, "layers": {"dense": stack(layers[::2]), "moe": stack(layers[1::2])}}
    return {**params, "layers": stack(layers)}


def adam_mean(opt_state):
    """Adam's running mean: after one step, a tenth of the gradient."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: hasattr(node, "mu"))
    return next(node.mu for node in nodes if hasattr(node, "mu"))


def assert_close(actual, expected, **tolerance):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("name", models.NAMES)
def test_scan_is_the_unrolled_model(name, compiled, first_step):
    _, args = compiled(TINY[name])
    state, metrics = first_step(TINY[name])
    scanned = replace(TINY[name], scan=True)
    step, _ = models.make_step(scanned, abstract=True)

    def first(params, batch, *key):
        opt_state = train.make_optimizer(scanned).init(params)
        return step(models.TrainState(params, opt_state, jnp.int32(0)), batch, *key)

    scan_state, scan_metrics = quick_jit(first)(stack_layers(args[0].params), *args[1:])

    assert_close(scan_metrics, metrics, rtol=1e-5)
    grads = stack_layers(adam_mean(state.opt_state))
    assert_close(adam_mean(scan_state.opt_state), grads, rtol=1e-3, atol=1e-7)

    # Where a gradient is all rounding (the bias of the keys), Adam's first step is a coin toss.
    def solid(params):
        return jax.tree.map(lambda p, g: np.where(abs(g) > 1e-6, p, 0), params, grads)

    assert_close(solid(scan_state.params), solid(stack_layers(state.params)), rtol=1e-4, atol=1e-5)


def test_scan_starts_from_the_same_numbers(compiled):
    _, args = compiled(TINY["moe"])
    scanned = replace(TINY["moe"], scan=True)
    params = quick_jit(lambda: models.init_state(scanned).params)()
    assert_close(params, stack_layers(args[0].params), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "scan"), [("bert", 0), ("llama", 0), ("gpt", 1), ("moe", 1)])
def test_checkpoint_changes_nothing(name, scan, compiled, first_step, gradients):
    config = replace(TINY[name], checkpoint=True, scan=bool(scan))
    _, (start, *rest) = compiled(TINY[name])
    state, metrics = first_step(TINY[name])
    expected = jax.tree.map(lambda mean: 10 * np.asarray(mean), adam_mean(state.opt_state))
    params = start.params
    if scan:
        params, expected = stack_layers(params), stack_layers(expected)
    value, grads = gradients(config, params, *rest)
    assert value == pytest.approx(float(metrics["loss"]), rel=1e-5)
    assert_close(grads, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", models.NAMES)
def test_bfloat16_is_finite_and_keeps_float32_weights(name, compiled, gradients):
    layers = 2 if name == "moe" else 1
    _, (state, *rest) = compiled(TINY[name])
    params = {**state.params, "layers": state.params["layers"][:layers]}
    value, grads = gradients(replace(TINY[name], layers=layers, dtype="bfloat16"), params, *rest)
    assert value == pytest.approx(np.log(TINY[name].vocab), rel=0.15)  # knows nothing yet
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(grads))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))


def test_stacked_qkv_is_head_major_with_its_columns_moved(compiled):
    config = TINY["gpt"]
    _, (state, batch, _) = compiled(config)

    def move(x):  # [..., heads, 3, size] -> [..., 3, heads, size]
        parts = np.asarray(x).reshape(*x.shape[:-1], config.heads, 3, config.head_size)
        return np.swapaxes(parts, -3, -2).reshape(x.shape)

    layers = [
        {**layer, "qkv": move(layer["qkv"]), "qkv_bias": move(layer["qkv_bias"])}
        for layer in state.params["layers"]
    ]

    def loss(params, layout):
        variant = models.config("gpt", qkv_layout=layout, dropout=0.0)
        return quick_jit(lambda p: train.model(variant).loss(p, batch, None, variant)[0])(params)

    moved = loss({**state.params, "layers": layers}, "stacked")
    assert moved == pytest.approx(float(loss(state.params, "head_major")), rel=1e-5)


@pytest.mark.parametrize("name", models.NAMES)
def test_tied_models_have_no_head(name):
    for tied in (True, False):
        step, args = models.make_step(models.config(name, tied=tied), abstract=True)
        assert ("head" not in args[0].params) == tied
        assert jax.eval_shape(step, *args)[0].params.keys() == args[0].params.keys()


def test_clipping_bounds_the_gradient():
    config = models.config("llama", clip_norm=1e-3)
    step, args = models.make_step(config, abstract=True)
    assert jax.tree.structure(jax.eval_shape(step, *args)[0]) == jax.tree.structure(args[0])

    optimizer = train.make_optimizer(config)
    w = np.zeros(4, np.float32)
    _, opt_state = quick_jit(lambda g: optimizer.update(g, optimizer.init(w), w))(w + 100)
    np.testing.assert_allclose(np.linalg.norm(adam_mean(opt_state)), 1e-4, rtol=1e-5)
