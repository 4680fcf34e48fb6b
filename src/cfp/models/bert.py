"""BERT: a bidirectional encoder trained to fill in masked tokens.

The original's layer normalises after each residual sum,

    x = norm1(x + out(attention(qkv(x))));  x = norm2(x + down(gelu(up(x))))

and its head is dense, GELU, norm and a decoder tied to the token embedding, plus a bias.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from cfp.models.config import Config
from cfp.models.gpt import init_layer, mlp, self_attention
from cfp.models.layers import (
    Params,
    cross_entropy,
    dense,
    dropout,
    embedding,
    fold,
    init_layers,
    layer_norm,
    lookup,
    norm_init,
    run_layers,
    weight,
)


def init(config: Config, key: Array) -> Params:
    layers, tokens, positions, segments, transform, head = jax.random.split(key, 6)
    params: Params = {
        "tokens": embedding(tokens, config.vocab, config.hidden),
        "positions": embedding(positions, config.seq, config.hidden),
        "segments": embedding(segments, 2, config.hidden),
        "norm": norm_init(config),
        "layers": init_layers({"layer": functools.partial(init_layer, config)}, config, layers),
        "transform": weight(transform, config.hidden, config.hidden),
        "transform_bias": jnp.zeros(config.hidden),
        "transform_norm": norm_init(config),
        "head_bias": jnp.zeros(config.vocab),
    }
    if not config.tied:
        params["head"] = weight(head, config.hidden, config.vocab)
    return params


def loss(
    params: Params, batch: Params, key: Array | None, config: Config
) -> tuple[Array, dict[str, Array]]:
    """Returns the cross entropy where `weights` is 1: the positions whose token was hidden."""
    x = lookup(params["tokens"], batch["tokens"], config)
    x = (
        x
        + params["positions"].astype(x.dtype)
        + lookup(params["segments"], batch["segments"], config)
    )
    x = dropout(layer_norm(x, params["norm"]), fold(key, config.layers), config.dropout)

    mask = batch["mask"][:, None, None, :]  # padding is seen by no one
    block = functools.partial(layer, config, mask)
    x, _ = run_layers({"layer": block}, params["layers"], x, key, config)

    x = jax.nn.gelu(dense(x, params["transform"], params["transform_bias"]))
    x = layer_norm(x, params["transform_norm"])
    decoder = params["tokens"].T if config.tied else params["head"]
    logits = dense(x, decoder, params["head_bias"])
    weights = batch["weights"]
    value = jnp.sum(cross_entropy(logits, batch["labels"]) * weights)
    value = value / jnp.maximum(jnp.sum(weights), 1)
    return value, {"loss": value}


def layer(
    config: Config, mask: Array, params: Params, x: Array, key: Array | None
) -> tuple[Array, None]:
    y = self_attention(config, params, x, mask, key)
    x = layer_norm(x + dropout(y, fold(key, 1), config.dropout), params["norm1"])
    y = mlp(params, x)
    x = layer_norm(x + dropout(y, fold(key, 2), config.dropout), params["norm2"])
    return x, None
