"""Each model learns its synthetic task."""

import jax
import numpy as np
import pytest

from cfp import models
from cfp.errors import CfpError

from .conftest import TINY

STEPS = {"bert": 150, "gpt": 60, "moe": 60, "llama": 60}


@pytest.mark.parametrize("name", models.NAMES)
def test_loss_falls(name, compiled):
    config = TINY[name]
    step, (state, _, *key) = compiled(config)
    losses = []
    for i in range(STEPS[name]):
        keys = [jax.random.fold_in(k, i) for k in key]
        state, metrics = step(state, models.synthetic_batch(config, i), *keys)
        losses.append(float(metrics["loss"]))

    assert state.step == STEPS[name]
    assert losses[0] == pytest.approx(np.log(config.vocab), rel=0.15)  # knows nothing yet
    assert np.mean(losses[-10:]) < 0.6 * losses[0]


@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_dropout_depends_on_the_key_alone(name, compiled):
    step, (state, batch, key) = compiled(TINY[name])
    first, again = (step(state, batch, k)[1]["loss"] for k in (key, key))
    other = step(state, batch, jax.random.key(1))[1]["loss"]
    assert first == again != other


def test_dropout_without_a_key_is_refused():
    step, (state, batch, _) = models.make_step(models.config("gpt"), abstract=True)
    with pytest.raises(CfpError, match="needs a `key`"):
        jax.eval_shape(step, state, batch)


def test_progressions():
    config = TINY["gpt"]
    batch = jax.device_get(models.synthetic_batch(config, 3))
    np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    strides = np.diff(batch["tokens"]) % config.vocab
    assert (strides == strides[:, :1]).all()
    assert len(np.unique(strides)) > 1


def test_masked_segments():
    batches = [jax.device_get(models.synthetic_batch(TINY["bert"], seed)) for seed in range(10)]
    batch = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    real, hidden = batch["mask"], batch["weights"] > 0
    assert not (hidden & ~real).any()
    assert hidden.sum() / real.sum() == pytest.approx(0.15, abs=0.03)
    np.testing.assert_array_equal(batch["tokens"][~hidden], batch["labels"][~hidden])
    assert (batch["tokens"][~real] == 0).all()
    assert (batch["tokens"][hidden] == 1).mean() == pytest.approx(0.8, abs=0.1)
    for labels, segments, here in zip(batch["labels"], batch["segments"], real, strict=True):
        assert all(len(np.unique(labels[here & (segments == s)])) == 1 for s in (0, 1))
