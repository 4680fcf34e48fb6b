"""GPT: a decoder with learned positions, layer norm before each part, and GELU.

    x = x + out(attention(qkv(norm1(x))));  x = x + down(gelu(up(norm2(x))))

The two halves of a layer are functions of their own: `moe` uses both, `bert` their inner parts.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from cfp.models.config import Config
from cfp.models.layers import (
    Params,
    attention,
    causal_mask,
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
    split_qkv,
    weight,
)


def init(config: Config, key: Array) -> Params:
    layers, ends = jax.random.split(key)
    return {
        **init_ends(config, ends),
        "layers": init_layers({"layer": functools.partial(init_layer, config)}, config, layers),
    }


def loss(
    params: Params, batch: Params, key: Array | None, config: Config
) -> tuple[Array, dict[str, Array]]:
    """Returns the mean next-token cross entropy; `labels` are the tokens, one further on."""
    x = embed(params, batch, key, config)
    x, _ = run_layers({"layer": functools.partial(layer, config)}, params["layers"], x, key, config)
    value = next_token_loss(params, x, batch, config)
    return value, {"loss": value}


def init_ends(config: Config, key: Array) -> Params:
    """Returns what is before and after the layers of a decoder with learned positions."""
    tokens, positions, head = jax.random.split(key, 3)
    ends: Params = {
        "tokens": embedding(tokens, config.vocab, config.hidden),
        "positions": embedding(positions, config.seq, config.hidden),
        "norm": norm_init(config),
    }
    if not config.tied:
        ends["head"] = weight(head, config.hidden, config.vocab)
    return ends


def embed(params: Params, batch: Params, key: Array | None, config: Config) -> Array:
    x = lookup(params["tokens"], batch["tokens"], config)
    x = x + params["positions"].astype(x.dtype)
    return dropout(x, fold(key, config.layers), config.dropout)


def next_token_loss(params: Params, x: Array, batch: Params, config: Config) -> Array:
    x = layer_norm(x, params["norm"])
    logits = dense(x, params["tokens"].T if config.tied else params["head"])
    return jnp.mean(cross_entropy(logits, batch["labels"]))


def init_layer(config: Config, key: Array) -> Params:
    attention, mlp = jax.random.split(key)
    return {**init_attention(config, attention), **init_mlp(config, mlp)}


def layer(config: Config, params: Params, x: Array, key: Array | None) -> tuple[Array, None]:
    return mlp_half(config, params, attention_half(config, params, x, key), key), None


def attention_half(config: Config, params: Params, x: Array, key: Array | None) -> Array:
    y = self_attention(config, params, layer_norm(x, params["norm1"]), causal_mask(config.seq), key)
    return x + dropout(y, fold(key, 1), config.dropout)


def mlp_half(config: Config, params: Params, x: Array, key: Array | None) -> Array:
    y = mlp(params, layer_norm(x, params["norm2"]))
    return x + dropout(y, fold(key, 2), config.dropout)


def init_attention(config: Config, key: Array) -> Params:
    qkv, out = jax.random.split(key)
    return {
        "norm1": norm_init(config),
        "qkv": weight(qkv, config.hidden, 3 * config.hidden),
        "qkv_bias": jnp.zeros(3 * config.hidden),
        "out": weight(out, config.hidden, config.hidden),
        "out_bias": jnp.zeros(config.hidden),
    }


def self_attention(
    config: Config, params: Params, x: Array, mask: Array, key: Array | None
) -> Array:
    q, k, v = split_qkv(dense(x, params["qkv"], params["qkv_bias"]), config)
    y = attention(q, k, v, mask, fold(key, 0), config.dropout)
    return dense(y, params["out"], params["out_bias"])


def init_mlp(config: Config, key: Array) -> Params:
    up, down = jax.random.split(key)
    return {
        "norm2": norm_init(config),
        "up": weight(up, config.hidden, config.ffn),
        "up_bias": jnp.zeros(config.ffn),
        "down": weight(down, config.ffn, config.hidden),
        "down_bias": jnp.zeros(config.hidden),
    }


def mlp(params: Params, x: Array) -> Array:
    x = jax.nn.gelu(dense(x, params["up"], params["up_bias"]))
    return dense(x, params["down"], params["down_bias"])
