"""CLIP's loss over two towers: the logits are the batch of images against the batch of texts."""

import jax
import jax.numpy as jnp
import numpy as np

from ..training import HIDDEN, MLP, arguments, cross_entropy, generator, noise, train_step
from .layers import mlp, mlp_init

PIXELS, WORDS = 96, 64


def make(layers=2, batch=8, abstract=False):
    rng = generator()
    params = {
        "image": mlp_init(rng, [PIXELS, *[MLP] * layers, HIDDEN]),
        "text": mlp_init(rng, [WORDS, *[MLP] * layers, HIDDEN]),
        "temperature": np.float32(np.log(10)),
    }
    data = {"image": noise(rng, (batch, PIXELS)), "text": noise(rng, (batch, WORDS))}

    def loss_fn(params, batch):
        image = _unit(mlp(params["image"], batch["image"]))
        text = _unit(mlp(params["text"], batch["text"]))
        logits = image @ text.T * jnp.exp(params["temperature"])
        labels = jnp.arange(len(logits))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    return train_step(loss_fn), arguments(params, data, abstract=abstract)


def _unit(x):
    return x * jax.lax.rsqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6)
