"""The same model written in other ways gives the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfp import models
from cfp.models import gpt, train


def stacked(tree):
    """The same tree as a model with `scan` has it: lists of layers become stacked arrays."""

    def stack(layers):
        return jax.tree.map(lambda *xs: jnp.stack(xs), *layers)

    def convert(layers):
        if not isinstance(layers, list):
            return layers
        if any("gate" in layer and "qkv" in layer for layer in layers):  # dense and expert layers
            return {"dense": stack(layers[::2]), "moe": stack(layers[1::2])}
        return stack(layers)

    return jax.tree.map(convert, tree, is_leaf=lambda node: isinstance(node, list))


def adam_mean(opt_state):
    """Adam's running mean, after one step a tenth of the gradient."""
    (mu,) = (
        s.mu
        for s in jax.tree.leaves(opt_state, is_leaf=lambda s: hasattr(s, "mu"))
        if hasattr(s, "mu")
    )
    return mu


def assert_close(actual, expected, **tolerance):
    actual, expected = jax.tree.flatten(actual), jax.tree.flatten(expected)
    assert actual[1] == expected[1]
    for a, b in zip(actual[0], expected[0], strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def assert_same_step(config, variant, compiled):
    step, args = compiled(config)
    variant_step, variant_args = compiled(variant)
    assert_close(stacked(variant_args[0].params), stacked(args[0].params), rtol=1e-6)

    state, metrics = step(*args)
    variant_state, variant_metrics = variant_step(*variant_args)
    assert_close(variant_metrics, metrics, rtol=1e-5)
    grads = stacked(adam_mean(state.opt_state))
    assert_close(stacked(adam_mean(variant_state.opt_state)), grads, rtol=1e-3, atol=1e-7)

    # Where a gradient is all rounding (the bias of the keys), Adam's first step is a coin toss.
    def solid(params):
        return jax.tree.map(lambda p, g: np.where(abs(g) > 1e-6, p, 0), stacked(params), grads)

    assert_close(solid(variant_state.params), solid(state.params), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("name", models.NAMES)
def test_scan_is_the_unrolled_model(name, checkpoint, compiled):
    config = models.config(name, layers=4 if name == "moe" else None)
    variant = models.config(name, layers=config.layers, scan=True, checkpoint=checkpoint)
    assert_same_step(config, variant, compiled)


@pytest.mark.parametrize("name", ["bert", "moe"])
def test_checkpoint_changes_nothing(name, compiled):
    assert_same_step(models.config(name), models.config(name, checkpoint=True), compiled)


@pytest.mark.parametrize("name", models.NAMES)
def test_bfloat16_is_finite_and_close(name, compiled):
    step, args = compiled(models.config(name))
    half_step, half_args = compiled(models.config(name, dtype="bfloat16"))
    state, metrics = half_step(*half_args)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(state.params))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state))
    assert metrics["loss"] == pytest.approx(float(step(*args)[1]["loss"]), rel=0.02)


def test_stacked_qkv_is_head_major_with_its_columns_moved():
    config = models.config("gpt", dropout=0.0)
    params = models.init_state(config).params
    batch = models.synthetic_batch(config)

    def move(x):  # [..., heads, 3, size] -> [..., 3, heads, size]
        x = x.reshape(*x.shape[:-1], config.heads, 3, config.head_size)
        return jnp.swapaxes(x, -3, -2).reshape(*x.shape[:-3], -1)

    layers = [
        {**layer, "qkv": move(layer["qkv"]), "qkv_bias": move(layer["qkv_bias"])}
        for layer in params["layers"]
    ]
    stacked_config = models.config("gpt", dropout=0.0, qkv_layout="stacked")
    expected, _ = gpt.loss(params, batch, None, config)
    actual, _ = gpt.loss({**params, "layers": layers}, batch, None, stacked_config)
    assert actual == pytest.approx(float(expected), rel=1e-5)


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
    params = {"w": jnp.zeros(4)}
    _, state = optimizer.update({"w": jnp.full(4, 100.0)}, optimizer.init(params), params)
    np.testing.assert_allclose(jnp.linalg.norm(adam_mean(state)["w"]), 1e-4, rtol=1e-5)
