"""Control flow: weights divided by their spectral norm, and an update that may be skipped.

The norm comes from a power iteration in a `while_loop` of as many rounds as an argument says, and
a `cond` keeps the old parameters where the loss is not finite.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from ..training import ADAMW, HIDDEN, arguments, generator, noise
from .layers import mlp, mlp_init

FEATURES, CLASSES = 24, 8


def make(layers=2, batch=8, abstract=False):
    def loss_fn(params, batch):
        normed = [p | {"w": p["w"] / _spectral_norm(p["w"], batch["rounds"])} for p in params]
        logits = mlp(normed, batch["x"])
        return optax.sigmoid_binary_cross_entropy(logits, batch["y"]).mean()

    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)

        def update(params, opt_state):
            updates, opt_state = ADAMW.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        def keep(params, opt_state):
            return params, opt_state

        params, opt_state = lax.cond(jnp.isfinite(loss), update, keep, params, opt_state)
        return params, opt_state, loss

    rng = generator()
    params = mlp_init(rng, [FEATURES, *[HIDDEN] * layers, CLASSES])
    data = {
        "x": noise(rng, (batch, FEATURES)),
        "y": rng.integers(0, 2, (batch, CLASSES)).astype(np.float32),
        "rounds": np.int32(4),
    }
    return step, arguments(params, data, abstract=abstract)


def _spectral_norm(weight, rounds):
    weight = lax.stop_gradient(weight)

    def body(state):
        i, v = state
        v = weight.T @ (weight @ v)
        return i + 1, v / jnp.linalg.norm(v)

    start = jnp.full(weight.shape[1], weight.shape[1] ** -0.5)
    _, v = lax.while_loop(lambda state: state[0] < rounds, body, (0, start))
    return jnp.linalg.norm(weight @ v)
