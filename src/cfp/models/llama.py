"""LLaMA-2: a decoder with RMS norm, rotary positions, grouped queries and SwiGLU; no biases.

x = x + out(attention(rotate(q(n1)), rotate(k(n1)), v(n1)))      n1 = norm1(x)
x = x + down(silu(gate(n2)) * up(n2))                            n2 = norm2(x)
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
    embedding,
    init_layers,
    lookup,
    rms_norm,
    run_layers,
    weight,
)


def init(config: Config, key: Array) -> Params:
    layers, tokens, head = jax.random.split(key, 3)
    params: Params = {
        "tokens": embedding(tokens, config.vocab, config.hidden),
        "layers": init_layers({"layer": functools.partial(init_layer, config)}, config, layers),
        "norm": jnp.ones(config.hidden),
    }
    if not config.tied:
        params["head"] = weight(head, config.hidden, config.vocab)
    return params


def loss(
    params: Params, batch: Params, key: Array | None, config: Config
) -> tuple[Array, dict[str, Array]]:
    """Returns the mean next-token cross entropy; `labels` are the tokens, one further on."""
    x = lookup(params["tokens"], batch["tokens"], config)
    block = functools.partial(layer, config, *rotary_angles(config.seq, config.head_size))
    x, _ = run_layers({"layer": block}, params["layers"], x, key, config)
    x = rms_norm(x, params["norm"])
    logits = dense(x, params["tokens"].T if config.tied else params["head"])
    value = jnp.mean(cross_entropy(logits, batch["labels"]))
    return value, {"loss": value}


def init_layer(config: Config, key: Array) -> Params:
    hidden, ffn, kv_hidden = config.hidden, config.ffn, config.kv_heads * config.head_size
    q, k, v, out, gate, up, down = jax.random.split(key, 7)
    return {
        "norm1": jnp.ones(hidden),
        "q": weight(q, hidden, hidden),
        "k": weight(k, hidden, kv_hidden),
        "v": weight(v, hidden, kv_hidden),
        "out": weight(out, hidden, hidden),
        "norm2": jnp.ones(hidden),
        "gate": weight(gate, hidden, ffn),
        "up": weight(up, hidden, ffn),
        "down": weight(down, ffn, hidden),
    }


def layer(
    config: Config, cos: Array, sin: Array, params: Params, x: Array, key: Array | None
) -> tuple[Array, None]:
    y = rms_norm(x, params["norm1"])
    q = rotate(split_heads(dense(y, params["q"]), config.heads), cos, sin)
    k = rotate(split_heads(dense(y, params["k"]), config.kv_heads), cos, sin)
    v = split_heads(dense(y, params["v"]), config.kv_heads)
    group = config.heads // config.kv_heads
    y = attention(q, repeat_heads(k, group), repeat_heads(v, group), causal_mask(config.seq))
    x = x + dense(y, params["out"])

    y = rms_norm(x, params["norm2"])
    y = jax.nn.silu(dense(y, params["gate"])) * dense(y, params["up"])
    return x + dense(y, params["down"]), None


def split_heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1)


def repeat_heads(x: Array, group: int) -> Array:
    """Returns [batch, seq, kv_heads, head size] with each head repeated `group` times: once for
    each query head it serves."""
    if group == 1:
        return x
    batch, seq, heads, size = x.shape
    x = jnp.broadcast_to(x[:, :, :, None, :], (batch, seq, heads, group, size))
    return x.reshape(batch, seq, heads * group, size)


def rotary_angles(seq: int, head_size: int) -> tuple[Array, Array]:
    """Returns cosine and sine of position / 10000^(2i / head size), as [seq, 1, head size / 2]."""
    frequency = 10000.0 ** (-jnp.arange(0, head_size, 2) / head_size)
    angle = jnp.arange(seq)[:, None, None] * frequency
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Turns the pair (x[i], x[i + head size / 2]) by its position's angle, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
