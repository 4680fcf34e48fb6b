"""Odd arguments: bf16 parameters, a typed key, `None` leaves, bool and small-integer tensors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..training import ADAMW, DROPOUT, HIDDEN, generator, materialize, noise, random_ids
from .layers import mlp, mlp_init

FEATURES, CLASSES = 24, 8


def make(layers=2, batch=8, abstract=False):
    def loss_fn(params, batch, key):
        keep = jax.random.bernoulli(key, 1 - DROPOUT, batch["x"].shape)
        x = jnp.where(keep, batch["x"] / (1 - DROPOUT), 0).astype(jnp.bfloat16)
        logits = mlp(params["layers"], x).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        if batch["weight"] is not None:
            losses = losses * batch["weight"]
        return jnp.sum(losses, where=batch["valid"]) / jnp.sum(batch["valid"])

    def step(state, batch, key):
        key = jax.random.fold_in(key, state["step"])
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch, key)
        updates, opt_state = ADAMW.update(grads, state["opt_state"], state["params"])
        state = {
            "params": optax.apply_updates(state["params"], updates),
            "opt_state": opt_state,
            "ema": state["ema"],
            "step": state["step"] + 1,
        }
        return state, loss

    rng = generator()
    weights = mlp_init(rng, [FEATURES, *[HIDDEN] * layers, CLASSES])
    data = {
        "x": noise(rng, (batch, FEATURES)).astype(jnp.bfloat16),
        "label": random_ids(rng, CLASSES, batch).astype(np.int8),
        "valid": np.arange(batch) < batch - 1,
        "weight": None,
    }

    def build(weights, data, key):
        params = {"layers": jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights), "bias": None}
        opt_state = ADAMW.init(params)
        state = {"params": params, "opt_state": opt_state, "ema": None, "step": jnp.int32(0)}
        return state, data, key

    return step, materialize(build, weights, data, jax.random.key(0), abstract=abstract)
