"""A step small enough to be planned by several processes in a test."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def make_step() -> tuple[Any, tuple[Any, ...]]:
    random = np.random.default_rng(0)
    ws = [random.normal(size=(64, 64)).astype(np.float32) / 8 for _ in range(2)]
    x = random.normal(size=(16, 64)).astype(np.float32)

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def step(ws: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(ws, x)
        return {"loss": value, "ws": [w - 0.1 * g for w, g in zip(ws, gradients, strict=True)]}

    return step, (ws, x)
