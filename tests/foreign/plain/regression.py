"""Regressions: an MLP with plain SGD, an RNN, and an MLP with accumulated gradients."""

import jax
import jax.numpy as jnp
import optax

from ..training import ADAMW, HIDDEN, SEQ, arguments, generator, noise, train_step
from .layers import dense, dense_init, mlp_init
from .layers import mlp as mlp_apply

FEATURES, TARGETS, MICRO_BATCHES = 24, 4, 2


def mlp(layers=2, batch=8, abstract=False):
    """Momentum-free SGD: the optimizer state has no array."""
    optimizer = optax.sgd(0.1)
    step = train_step(_mlp_loss, optimizer)
    return step, arguments(*_mlp_arguments(layers, batch), optimizer, abstract=abstract)


def accumulate(layers=2, batch=8, abstract=False):
    """Sums gradients over micro-batches in a `scan`, then updates once."""

    def step(params, opt_state, batch):
        micro_batches = jax.tree.map(lambda x: x.reshape(MICRO_BATCHES, -1, *x.shape[1:]), batch)

        def micro_step(total, micro_batch):
            loss, grads = jax.value_and_grad(_mlp_loss)(params, micro_batch)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, losses = jax.lax.scan(micro_step, zeros, micro_batches)
        grads = jax.tree.map(lambda g: g / MICRO_BATCHES, grads)
        updates, opt_state = ADAMW.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, losses.mean()

    return step, arguments(*_mlp_arguments(layers, batch), abstract=abstract)


def rnn(layers=2, batch=8, abstract=False):
    """Stacked recurrent layers, each a `scan` over time; the last state is regressed."""
    rng = generator()
    params = {
        "cells": [
            {"x": dense_init(rng, fan_in, HIDDEN), "h": dense_init(rng, HIDDEN, HIDDEN)}
            for fan_in in ([FEATURES] + [HIDDEN] * layers)[:layers]
        ],
        "head": dense_init(rng, HIDDEN, TARGETS),
    }

    def loss_fn(params, batch):
        xs = batch["x"].swapaxes(0, 1)  # time leads, as `scan` wants it
        for cell in params["cells"]:

            def tick(h, x, cell=cell):
                h = jnp.tanh(dense(cell["x"], x) + dense(cell["h"], h))
                return h, h

            last, xs = jax.lax.scan(tick, jnp.zeros((xs.shape[1], HIDDEN)), xs)
        return jnp.mean((dense(params["head"], last) - batch["y"]) ** 2)

    return train_step(loss_fn), arguments(params, _data(rng, batch, SEQ), abstract=abstract)


def _mlp_arguments(layers, batch):
    rng = generator()
    return mlp_init(rng, [FEATURES, *[HIDDEN] * layers, TARGETS]), _data(rng, batch)


def _mlp_loss(params, batch):
    return jnp.mean((mlp_apply(params, batch["x"]) - batch["y"]) ** 2)


def _data(rng, batch, *time):
    return {"x": noise(rng, (batch, *time, FEATURES)), "y": noise(rng, (batch, TARGETS))}
