"""The training steps of Alpa's tests (tests/shard_parallel), as plain JAX."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct

Step = tuple[Callable[..., Any], tuple[Any, Any]]


def floats(*shape: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, jnp.int32)


def key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def training(loss: Callable[[Any, Any], Any], params: Any, batch: Any) -> Step:
    optimizer = optax.adam(1e-2)

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        updates, moments = optimizer.update(jax.grad(loss)(params, batch), moments, params)
        return optax.apply_updates(params, updates), moments

    return step, ((params, jax.eval_shape(optimizer.init, params)), batch)


def dense_weights(inputs: int, outputs: int) -> Any:
    return {"kernel": floats(inputs, outputs), "bias": floats(outputs)}


def norm_weights(size: int) -> Any:
    return {"scale": floats(size), "bias": floats(size)}


def dense(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def norm(p: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) * jax.lax.rsqrt(variance + 1e-12) * p["scale"] + p["bias"]


def dropout(x: Any, rng: Any) -> Any:
    if rng is None:
        return x
    return jnp.where(jax.random.bernoulli(rng, 0.9, x.shape), x / 0.9, jnp.zeros_like(x))


def fold(rng: Any, index: int) -> Any:
    return None if rng is None else jax.random.fold_in(rng, index)


def mlp(layers: int, batch: int, hidden: int) -> Step:
    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for i, p in enumerate(params):
            x = dense(p, x) if i == layers - 1 else jax.nn.relu(dense(p, x))
        return jnp.mean((x - batch["y"]) ** 2)

    data = {"x": floats(batch, hidden), "y": floats(batch, hidden)}
    return training(loss, [dense_weights(hidden, hidden) for _ in range(layers)], data)


def attention(p: Any, x: Any, mask: Any, heads: int, rng: Any) -> Any:
    b, s, d = x.shape
    qvk = dense(p["qvk"], x).reshape(b, s, d, 3)
    q, v, k = (t.reshape(b, s, heads, d // heads) for t in jnp.split(qvk, 3, axis=3))
    none, minus = jnp.full((b, 1, 1, s), 0.0), jnp.full((b, 1, 1, s), -1e10)
    bias = jax.lax.select(mask[:, None, None, :] > 0, none, minus)
    weights = jnp.einsum("bqhd,bkhd->bhqk", q / math.sqrt(d // heads), k)
    weights = dropout(jax.nn.softmax(weights + bias), fold(rng, 1))
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, s, d)
    return norm(p["norm"], dropout(dense(p["out"], out), fold(rng, 2)) + x)


def attention_weights(d: int) -> Any:
    return {"qvk": dense_weights(d, 3 * d), "out": dense_weights(d, d), "norm": norm_weights(d)}


def bert_layer(p: Any, x: Any, mask: Any, heads: int, rng: Any) -> Any:
    x = attention(p["attention"], x, mask, heads, rng)
    h = dense(p["down"], jax.nn.gelu(dense(p["up"], x), approximate=False))
    return norm(p["norm"], dropout(h, fold(rng, 3)) + x)


def bert_weights(d: int) -> Any:
    mlps = {"up": dense_weights(d, 4 * d), "down": dense_weights(4 * d, d)}
    return {"attention": attention_weights(d), **mlps, "norm": norm_weights(d)}


def bert(batch: int, seq: int, hidden: int, *, remat: bool = False) -> Step:
    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        run = jax.checkpoint(bert_layer, static_argnums=(3,)) if remat else bert_layer
        for i, p in enumerate(params):
            x = run(p, x, batch["mask"], 8, fold(batch["rng"], i))
        return jnp.mean((x - batch["y"]) ** 2)

    tensors = {"x": floats(batch, seq, hidden), "y": floats(batch, seq, hidden)}
    data = {**tensors, "mask": integers(batch, seq), "rng": key()}
    return training(loss, [bert_weights(hidden) for _ in range(2)], data)


def embed(table: Any, ids: Any) -> Any:
    """Looks tokens up as Alpa patches flax: by a dot with a one-hot matrix."""
    return jax.nn.one_hot(ids, table.shape[0]) @ table


def cross_entropy(logits: Any, labels: Any) -> Any:
    one_hot = jax.nn.one_hot(labels, logits.shape[-1])
    return -jnp.sum(one_hot * jax.nn.log_softmax(logits, axis=-1), axis=-1)


def bert_mlm(batch: int, seq: int, hidden: int, heads: int, vocab: int) -> Step:
    def loss(p: Any, batch: Any) -> Any:
        x = embed(p["word"], batch["ids"]) + embed(p["position"], batch["positions"])
        x = dropout(norm(p["norm"], x + embed(p["type"], batch["types"])), batch["rng"])
        for i, layer in enumerate(p["layers"]):
            x = bert_layer(layer, x, batch["mask"], heads, fold(batch["rng"], i))
        x = norm(p["head_norm"], jax.nn.gelu(dense(p["head"], x), approximate=False))
        each = cross_entropy(x @ p["word"].T + p["bias"], batch["labels"])
        mask = jnp.where(batch["labels"] > 0, 1.0, 0.0)
        return (mask * each).sum() / mask.sum() * 0.1234

    weights = {
        "word": floats(vocab, hidden),
        "position": floats(seq, hidden),
        "type": floats(2, hidden),
        "norm": norm_weights(hidden),
        "layers": [bert_weights(hidden) for _ in range(2)],
        "head": dense_weights(hidden, hidden),
        "head_norm": norm_weights(hidden),
        "bias": floats(vocab),
    }
    names = ("ids", "positions", "types", "mask", "labels")
    data = {name: integers(batch, seq) for name in names}
    return training(loss, weights, {**data, "rng": key()})


def tied_embedding(*, lookup: bool) -> Step:
    def loss(p: Any, batch: Any) -> Any:
        table = p["embedding"]
        x = table[batch["x"]] if lookup else embed(table, batch["x"])
        return cross_entropy(x @ table.T, batch["y"]).sum()

    return training(loss, {"embedding": floats(1024, 8)}, {k: integers(8, 8) for k in "xy"})


def top2(gates: Any) -> tuple[Any, Any]:
    _, s, e = gates.shape
    capacity = 2 * s // e
    one_hot, summed = jax.nn.one_hot, functools.partial(jnp.einsum, "gse,gse->gs")
    first = jnp.argmax(gates, axis=-1)
    mask_1 = one_hot(first, e, dtype=jnp.int32)
    gate_1 = summed(gates, mask_1)
    rest = gates * (1 - mask_1)
    second = jnp.argmax(rest, axis=-1)
    mask_2 = one_hot(second, e, dtype=jnp.int32)
    gate_2 = summed(rest, mask_2)
    place_1 = jnp.cumsum(mask_1, axis=-2) - mask_1
    mask_1 *= place_1 < capacity
    place_1 = summed(place_1, mask_1)
    place_2 = jnp.cumsum(mask_2, axis=-2) - mask_2 + jnp.sum(mask_1, axis=-2)[:, None]
    mask_2 *= place_2 < capacity
    place_2 = summed(place_2, mask_2)
    gate_1, gate_2 = gate_1 * jnp.sum(mask_1, axis=-1), gate_2 * jnp.sum(mask_2, axis=-1)
    total = gate_1 + gate_2
    total = jnp.where(total > 0, total, jnp.ones_like(total))
    combined = sum(
        jnp.einsum(
            "gse,gsc->gsec", (gate / total)[..., None] * one_hot(index, e), one_hot(place, capacity)
        )
        for gate, index, place in ((gate_1, first, place_1), (gate_2, second, place_2))
    )
    return combined, combined.astype(bool)


def moe_layer() -> Step:
    batch, seq, hidden, group, experts = 64, 16, 64, 32, 16

    def loss(p: Any, batch: Any) -> Any:
        x = attention(p["attention"], batch["x"], batch["mask"], 16, None)
        tokens = x.reshape(-1, group, hidden)
        combined, dispatch = top2(jax.nn.softmax(jnp.einsum("gsm,me->gse", tokens, p["wg"])))
        inputs = jnp.einsum("gsec,gsm->egcm", dispatch.astype(x.dtype), tokens)
        h = jax.nn.relu(jnp.einsum("egcm,emh->egch", inputs, p["wi"]))
        outputs = jnp.einsum("egch,ehm->gecm", h, p["wo"])
        y = jnp.einsum("gsec,gecm->gsm", combined, outputs).reshape(x.shape)
        return jnp.mean((norm(p["norm"], y + x) - batch["y"]) ** 2)

    weights = {
        "attention": attention_weights(hidden),
        "wg": floats(hidden, experts),
        "wi": floats(experts, hidden, 4 * hidden),
        "wo": floats(experts, 4 * hidden, hidden),
        "norm": norm_weights(hidden),
    }
    data = {"x": floats(batch, seq, hidden), "y": floats(batch, seq, hidden)}
    return training(loss, weights, {**data, "mask": integers(batch, seq)})


def convolutions(layers: int, batch: int, image: int, channels: int) -> Step:
    """Convolution, batch norm, relu and max pool; momentum; the state holds running statistics."""
    optimizer = optax.sgd(0.1, momentum=0.9)

    def loss(params: Any, running: Any, batch: Any) -> Any:
        x, new = batch["x"], []
        for p, old in zip(params, running, strict=True):
            dims = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, p["kernel"], (2, 2), "SAME", dimension_numbers=dims)
            mean, square = x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))
            variance = jnp.maximum(0.0, square - mean * mean)
            seen = {"mean": mean, "variance": variance}
            new.append({name: 0.99 * old[name] + 0.01 * seen[name] for name in seen})
            x = (x - mean) * (jax.lax.rsqrt(variance + 1e-5) * p["scale"]) + p["bias"]
            window = (1, 2, 2, 1), (1, 1, 1, 1), "SAME"
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, *window)
        return jnp.mean((x - batch["y"]) ** 2), new

    def step(state: Any, batch: Any) -> Any:
        params, moments, running = state
        grads, running = jax.grad(loss, has_aux=True)(params, running, batch)
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, running

    kernel, out = floats(3, 3, channels, channels), image // 2**layers
    weights = [{"kernel": kernel, **norm_weights(channels)} for _ in range(layers)]
    statistics = [{"mean": floats(channels), "variance": floats(channels)} for _ in range(layers)]
    state = weights, jax.eval_shape(optimizer.init, weights), statistics
    data = {"x": floats(batch, image, image, channels), "y": floats(batch, out, out, channels)}
    return step, (state, data)
