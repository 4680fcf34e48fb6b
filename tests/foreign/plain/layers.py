"""Layers as pairs of functions, and pytrees of parameters."""

import jax
import jax.numpy as jnp

from ..training import noise


def dense_init(key, fan_in, fan_out):
    weight = noise(key, (fan_in, fan_out), fan_in**-0.5)
    return {"w": weight, "b": jnp.zeros(fan_out)}


def dense(p, x):
    return x @ p["w"] + p["b"]


def mlp_init(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [dense_init(*each) for each in zip(keys, sizes[:-1], sizes[1:], strict=True)]


def mlp(p, x):
    for layer in p[:-1]:
        x = jax.nn.relu(dense(layer, x))
    return dense(p[-1], x)


def norm_init(size):
    return {"scale": jnp.ones(size), "bias": jnp.zeros(size)}


def norm(p, x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]
