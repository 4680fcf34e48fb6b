"""Each model learns its synthetic task."""

import functools

import jax
import numpy as np
import pytest

from cfp import models
from cfp.errors import CfpError

STEPS = {"bert": 160, "gpt": 80, "moe": 80, "llama": 80}


@pytest.mark.parametrize("name", models.NAMES)
def test_loss_falls(name, compiled):
    config = models.config(name)
    step, (state, _, *key) = compiled(config)
    batches = jax.jit(functools.partial(models.synthetic_batch, config))
    losses = []
    for i in range(STEPS[name]):
        keys = [jax.random.fold_in(k, i) for k in key]
        state, metrics = step(state, batches(i), *keys)
        losses.append(float(metrics["loss"]))

    assert state.step == STEPS[name]
    assert losses[0] == pytest.approx(np.log(config.vocab), rel=0.15)  # knows nothing yet
    assert np.mean(losses[-10:]) < 0.6 * losses[0]


@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_dropout_depends_on_the_key_alone(name, compiled):
    step, (state, batch, key) = compiled(models.config(name))
    first, again = (step(state, batch, key)[1]["loss"] for _ in range(2))
    other = step(state, batch, jax.random.key(1))[1]["loss"]
    assert first == again != other


def test_dropout_without_a_key_is_refused():
    step, (state, batch, _) = models.make_step(models.config("gpt"), abstract=True)
    with pytest.raises(CfpError, match="needs a `key`"):
        jax.eval_shape(step, state, batch)


def test_batches_are_what_the_task_says():
    config = models.config("gpt", batch=4, seq=8)
    batch = jax.device_get(models.synthetic_batch(config, 3))
    np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    strides = np.diff(batch["tokens"]) % config.vocab
    assert (strides == strides[:, :1]).all()

    config = models.config("bert", batch=64)
    batch = jax.device_get(models.synthetic_batch(config, 3))
    hidden = batch["weights"] > 0
    assert not (hidden & ~batch["mask"]).any()
    assert 0.1 < hidden.sum() / batch["mask"].sum() < 0.2
    np.testing.assert_array_equal(batch["tokens"][~hidden], batch["labels"][~hidden])
    assert (batch["tokens"][~batch["mask"]] == 0).all()
    assert 0.7 < (batch["tokens"][hidden] == 1).mean() < 0.9
