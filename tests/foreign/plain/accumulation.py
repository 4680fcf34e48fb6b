"""A step as large models are trained: gradients accumulated over micro-batches, layers stacked
under `scan` and computed again in the backward pass, bfloat16, and a loss scale that adapts."""

import jax
import jax.numpy as jnp
import optax

from ..training import (
    ADAMW,
    HIDDEN,
    MLP,
    SEQ,
    VOCAB,
    cross_entropy,
    generator,
    materialize,
    noise,
    random_ids,
)
from .layers import norm, norm_init

SCALE = 2.0**10


def make_step(
    layers=2, batch=16, abstract=False, *, micro_batches=2, loop="scan", remat=True, stacked=True
):
    """`(step, (params, opt_state, batch))`; `step` returns the new ones of the first two, and the
    loss.

    `loop` says how the micro-batches are run over: "scan" (of a reshaped batch), "map" or "fori".
    `stacked` puts the layers under a `scan` of their own.
    """
    grads_of = LOOPS[loop]

    def step(params, opt_state, batch):
        scale = opt_state["scale"]

        def scaled_loss(params, micro_batch):
            half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            return _loss(half, micro_batch, remat, stacked) * scale

        loss, grads = grads_of(jax.value_and_grad(scaled_loss), params, batch, micro_batches)
        unscale = 1 / (scale * micro_batches)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32) * unscale, grads)
        finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
        updates, adam = ADAMW.update(grads, opt_state["adam"], params)
        new = optax.apply_updates(params, updates), adam
        kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (params, opt_state["adam"]))
        scale = jnp.where(finite, scale, scale / 2)
        return kept[0], {"adam": kept[1], "scale": scale}, loss * unscale

    def build(params, batch):
        opt_state = {"adam": ADAMW.init(params), "scale": jnp.float32(SCALE)}
        return params, opt_state, batch

    rng = generator()
    made = _params(rng, layers), {"tokens": random_ids(rng, VOCAB, batch, SEQ)}
    return step, materialize(build, *made, abstract=abstract)


def _scan(value_and_grad, params, batch, count):
    parts = _parted(batch, count)

    def add(total, part):
        return jax.tree.map(jnp.add, total, value_and_grad(params, part)), None

    zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(add, zeros, parts)[0]


def _map(value_and_grad, params, batch, count):
    found = jax.lax.map(lambda part: value_and_grad(params, part), _parted(batch, count))
    return jax.tree.map(lambda x: x.sum(0), found)


def _fori(value_and_grad, params, batch, count):
    rows = len(batch["tokens"]) // count

    def add(i, total):
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * rows, rows), batch)
        return jax.tree.map(jnp.add, total, value_and_grad(params, part))

    zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
    return jax.lax.fori_loop(0, count, add, zeros)


LOOPS = {"scan": _scan, "map": _map, "fori": _fori}


def _parted(batch, count):
    return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)


def _params(rng, layers):
    def stack(*shape, std):
        return noise(rng, (layers, *shape), std)

    norms = jax.tree.map(lambda x: jnp.stack([x] * layers), norm_init(HIDDEN))
    return {
        "embed": noise(rng, (VOCAB, HIDDEN), 0.1),
        "layers": {
            "norm": norms,
            "up": stack(HIDDEN, MLP, std=HIDDEN**-0.5),
            "down": stack(MLP, HIDDEN, std=MLP**-0.5),
        },
        "head": noise(rng, (HIDDEN, VOCAB), HIDDEN**-0.5),
    }


def _loss(params, batch, remat, stacked):
    def layer(x, p):
        return x + jax.nn.gelu(norm(p["norm"], x) @ p["up"]) @ p["down"], None

    body = jax.checkpoint(layer) if remat else layer
    tokens = batch["tokens"]
    x = params["embed"][tokens[:, :-1]]
    if stacked:
        x, _ = jax.lax.scan(body, x, params["layers"])
    else:
        for i in range(len(params["layers"]["up"])):
            x, _ = body(x, jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"]))
    return cross_entropy((x @ params["head"]).astype(jnp.float32), tokens[:, 1:])
