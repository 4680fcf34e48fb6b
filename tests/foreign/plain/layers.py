"""Layers as pairs of functions, and pytrees of parameters."""

from itertools import pairwise

import jax
import numpy as np

from ..training import noise


def dense_init(rng, fan_in, fan_out):
    weight = noise(rng, (fan_in, fan_out), fan_in**-0.5)
    return {"w": weight, "b": np.zeros(fan_out, np.float32)}


def dense(p, x):
    return x @ p["w"] + p["b"]


def mlp_init(rng, sizes):
    return [dense_init(rng, *pair) for pair in pairwise(sizes)]


def mlp(p, x):
    for layer in p[:-1]:
        x = jax.nn.relu(dense(layer, x))
    return dense(p[-1], x)


def norm_init(size):
    return {"scale": np.ones(size, np.float32), "bias": np.zeros(size, np.float32)}


def norm(p, x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]
