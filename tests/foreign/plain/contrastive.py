"""CLIP's loss over two towers: the logits are the batch of images against the batch of texts."""

import jax
import jax.numpy as jnp

from ..training import HIDDEN, MLP, arguments, cross_entropy, noise, train_step
from .layers import mlp, mlp_init

PIXELS, WORDS = 96, 64


def make(layers=2, batch=8, abstract=False):
    def init(key):
        image_key, text_key = jax.random.split(key)
        return {
            "image": mlp_init(image_key, [PIXELS, *[MLP] * layers, HIDDEN]),
            "text": mlp_init(text_key, [WORDS, *[MLP] * layers, HIDDEN]),
            "temperature": jnp.log(jnp.float32(10)),
        }

    def loss_fn(params, batch):
        image = _unit(mlp(params["image"], batch["image"]))
        text = _unit(mlp(params["text"], batch["text"]))
        logits = image @ text.T * jnp.exp(params["temperature"])
        labels = jnp.arange(len(logits))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    def data(key):
        image_key, text_key = jax.random.split(key)
        return {
            "image": noise(image_key, (batch, PIXELS)),
            "text": noise(text_key, (batch, WORDS)),
        }

    return train_step(loss_fn), arguments(init, data, abstract=abstract)


def _unit(x):
    return x * jax.lax.rsqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6)
