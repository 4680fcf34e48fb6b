"""The step of docs/architecture.md. It has a file of its own because the page shows its lines."""

import jax
import jax.numpy as jnp


def step(layers, batch):
    def loss(layers):
        hidden = batch["x"]
        for layer in layers:
            hidden = jnp.tanh(hidden @ layer["up"]) @ layer["down"]
        return jnp.mean((hidden - batch["y"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(layers)
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradients), value
