"""Pieces the four models share: dense weights, norms, dropout, attention, and the layer stack.

Parameters are nested dicts of float32 arrays. A weight is cast to the dtype of the activations
where it is used, so that with bfloat16 the float32 copy is the one the optimizer updates. Norms,
softmax and losses compute in float32.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cfp.models.config import Config

NEGATIVE = -1e30  # a masked score: finite, so that a row with nothing to see stays finite

Params = dict[str, Any]
Init = Callable[[Array], Params]
Block = Callable[[Params, Array, Array | None], tuple[Array, Array | None]]


def weight(key: Array, *shape: int) -> Array:
    """Returns a dense weight [..., fan_in, fan_out] that keeps the variance of its input."""
    return jax.random.normal(key, shape) / math.sqrt(shape[-2])


def embedding(key: Array, *shape: int) -> Array:
    return 0.02 * jax.random.normal(key, shape)


def dense(x: Array, w: Array, bias: Array | None = None) -> Array:
    y = x @ w.astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype)


def lookup(table: Array, ids: Array, config: Config) -> Array:
    return table[ids].astype(config.compute_dtype)


def norm_init(config: Config) -> Params:
    return {"scale": jnp.ones(config.hidden), "bias": jnp.zeros(config.hidden)}


def layer_norm(x: Array, params: Params, eps: float = 1e-5) -> Array:
    y: Array = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    y = y * params["scale"] + params["bias"]
    return y.astype(x.dtype)


def rms_norm(x: Array, scale: Array, eps: float = 1e-5) -> Array:
    y = x.astype(jnp.float32)
    y = scale * (y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps))
    return y.astype(x.dtype)


def fold(key: Array | None, data: int | Array) -> Array | None:
    """Returns a key of its own for one use; None, where there is no dropout, stays None."""
    return None if key is None else jax.random.fold_in(key, data)


def dropout(x: Array, key: Array | None, rate: float) -> Array:
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def causal_mask(seq: int) -> Array:
    """Returns the mask [query, key] with which a position sees itself and what came before."""
    return jnp.arange(seq)[:, None] >= jnp.arange(seq)[None, :]


def attention(
    q: Array, k: Array, v: Array, mask: Array, key: Array | None = None, rate: float = 0.0
) -> Array:
    """Returns softmax(q k^T / sqrt(d)) v over [batch, seq, heads, head size], with the heads joined
    again.

    `mask` broadcasts to [batch, heads, query, key] and is True where a query may look.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    scores = jnp.where(mask, scores.astype(jnp.float32), NEGATIVE)
    probs = dropout(jax.nn.softmax(scores).astype(v.dtype), key, rate)
    out = jnp.einsum("bhqk,bkhd->bqhd", probs, v)
    return out.reshape(*out.shape[:2], -1)


def split_qkv(qkv: Array, config: Config) -> list[Array]:
    """Returns q, k and v of [batch, seq, heads, head size] from the fused projection [batch, seq, 3
    hidden].

    Head-major keeps each head's q, k and v together, so that splitting the columns over devices
    gives each device whole heads; in the stacked layout the columns are all q, then all k, then v.
    """
    heads = (*qkv.shape[:2], config.heads)
    if config.qkv_layout == "head_major":
        return list(jnp.unstack(qkv.reshape(*heads, 3, config.head_size), axis=3))
    return [x.reshape(*heads, config.head_size) for x in jnp.split(qkv, 3, axis=-1)]


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Returns the cross entropy of each position, in float32."""
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)  # type: ignore[no-any-return]


def init_layers(inits: Mapping[str, Init], config: Config, key: Array) -> Any:
    """Returns parameters of all layers, whose kinds take turns in the order of `inits`.

    A list with a dict per layer; with `scan`, a dict of stacked arrays (one such dict per kind,
    where there are several). Both hold the same numbers for the same key.
    """
    keys = jax.random.split(key, config.layers)
    kinds = list(inits)
    if config.scan:
        stacked = {
            kind: jax.vmap(init)(keys[i :: len(kinds)])
            for i, (kind, init) in enumerate(inits.items())
        }
        return stacked if len(kinds) > 1 else stacked[kinds[0]]
    return [inits[kinds[i % len(kinds)]](keys[i]) for i in range(config.layers)]


def run_layers(
    blocks: Mapping[str, Block], layers: Any, x: Array, key: Array | None, config: Config
) -> tuple[Array, Any]:
    """Returns x after all layers as `init_layers` laid them out, and what each layer returned
    besides.

    Layer i draws its dropout from `key` folded with i, with and without `scan`.
    """
    fns = list(blocks.values())
    if config.checkpoint:  # inside a loop nothing can be merged with the recomputation
        fns = [jax.checkpoint(fn, prevent_cse=not config.scan) for fn in fns]
    if not config.scan:
        aux = []
        for i, params in enumerate(layers):
            x, extra = fns[i % len(fns)](params, x, fold(key, i))
            aux.append(extra)
        return x, aux

    groups = list(layers.values()) if len(fns) > 1 else [layers]

    def body(x: Array, item: tuple[Array, list[Params]]) -> tuple[Array, list[Array | None]]:
        turn, group = item
        aux = []
        for i, (fn, params) in enumerate(zip(fns, group, strict=True)):
            x, extra = fn(params, x, fold(key, turn * len(fns) + i))
            aux.append(extra)
        return x, aux

    return jax.lax.scan(body, x, (jnp.arange(config.layers // len(fns)), groups))
