"""Parameters are what the update rewrites, whatever else a step reads outside its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.flatten_util import ravel_pytree

from cfp.blocks.parameters import find_parameters
from cfp.trace import trace

PARAMS = {"up": jnp.ones((8, 16)), "down": jnp.ones((16, 8))}
DATA = jnp.ones((8, 8))


def loss(params: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)


def trained(params: Any, x: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


def logs_its_data(params: Any, x: Any) -> Any:
    return trained(params, x), {"mean": x.mean(), "rows": jnp.abs(x).sum(1)}


def prints_its_data(params: Any, x: Any) -> Any:
    jax.debug.print("{}", x.mean())
    return trained(params, x)


def weighs_by_its_data(params: Any, x: Any) -> Any:
    """The rate follows from the data: all of the new parameters are made of it."""
    rate = 0.1 / x.sum()
    grads = jax.grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def updates_one_vector(params: Any, x: Any) -> Any:
    flat, again = ravel_pytree(params)
    return again(flat - 0.1 * ravel_pytree(jax.grad(loss)(params, x))[0])


def returns_gradients(params: Any, x: Any) -> Any:
    return jax.grad(loss)(params, x), x.mean()


def returns_clipped_gradients(params: Any, x: Any) -> Any:
    clip = optax.clip_by_global_norm(1.0)
    grads = jax.grad(loss)(params, x)
    return clip.update(grads, clip.init(params))[0], x.mean()


@pytest.mark.parametrize(
    "step",
    [
        trained,
        logs_its_data,
        prints_its_data,
        weighs_by_its_data,
        updates_one_vector,
        returns_gradients,
        returns_clipped_gradients,
    ],
    ids=lambda step: step.__name__,
)
def test_data_is_no_parameter(step: Callable[..., Any]) -> None:
    graph = trace(step, PARAMS, DATA)
    found = find_parameters(graph)
    names = dict(zip(graph.inputs, graph.input_paths, strict=True))
    assert {names[value] for value in found} == {"params['up']", "params['down']"}


def test_a_forward_pass_alone_counts_every_argument() -> None:
    graph = trace(loss, PARAMS, DATA)
    assert find_parameters(graph) == frozenset(graph.inputs)
