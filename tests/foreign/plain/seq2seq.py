"""An encoder-decoder transformer with cross attention; gradients clipped by their global norm."""

import jax
import jax.numpy as jnp
import optax

from ..training import (
    HEADS,
    HIDDEN,
    MLP,
    SEQ,
    VOCAB,
    arguments,
    generator,
    next_token_loss,
    noise,
    random_ids,
    train_step,
)
from .layers import dense, dense_init, mlp, mlp_init, norm, norm_init

SOURCE_SEQ = 20
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


def make(layers=2, batch=8, abstract=False):
    """`layers` encoder layers and as many decoder layers."""
    rng = generator()
    params = {
        "tokens": noise(rng, (VOCAB, HIDDEN), 0.1),
        "source_positions": noise(rng, (SOURCE_SEQ, HIDDEN), 0.1),
        "target_positions": noise(rng, (SEQ, HIDDEN), 0.1),
        "encoder": [_layer_init(rng, ("self",)) for _ in range(layers)],
        "decoder": [_layer_init(rng, ("self", "cross")) for _ in range(layers)],
        "norm": norm_init(HIDDEN),
        "head": dense_init(rng, HIDDEN, VOCAB),
    }
    data = {
        "source": random_ids(rng, VOCAB, batch, SOURCE_SEQ),
        "target": random_ids(rng, VOCAB, batch, SEQ),
    }

    def loss_fn(params, batch):
        memory = params["tokens"][batch["source"]] + params["source_positions"]
        for layer in params["encoder"]:
            memory = _layer(layer, memory)
        x = params["tokens"][batch["target"]] + params["target_positions"]
        causal = jnp.tril(jnp.ones((SEQ, SEQ), bool))
        for layer in params["decoder"]:
            x = _layer(layer, x, mask=causal, memory=memory)
        return next_token_loss(dense(params["head"], norm(params["norm"], x)), batch["target"])

    step = train_step(loss_fn, OPTIMIZER)
    return step, arguments(params, data, OPTIMIZER, abstract=abstract)


def _layer_init(rng, attentions):
    params = {name: _attention_init(rng) for name in attentions}
    return params | {"mlp_norm": norm_init(HIDDEN), "mlp": mlp_init(rng, [HIDDEN, MLP, HIDDEN])}


def _attention_init(rng):
    projections = {name: dense_init(rng, HIDDEN, HIDDEN) for name in "qkvo"}
    return projections | {"norm": norm_init(HIDDEN)}


def _layer(p, x, mask=None, memory=None):
    y = norm(p["self"]["norm"], x)
    x = x + _attention(p["self"], y, y, mask)
    if memory is not None:
        x = x + _attention(p["cross"], norm(p["cross"]["norm"], x), memory)
    return x + mlp(p["mlp"], norm(p["mlp_norm"], x))


def _attention(p, x, memory, mask=None):
    def heads(part, y):
        return dense(p[part], y).reshape(*y.shape[:-1], HEADS, HIDDEN // HEADS)

    scores = jnp.einsum("bqhd,bkhd->bhqk", heads("q", x), heads("k", memory))
    scores = scores * (HIDDEN // HEADS) ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), heads("v", memory))
    return dense(p["o"], mixed.reshape(x.shape))
