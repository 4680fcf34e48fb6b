"""Small steps and plans that several tests use."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cfp import models
from cfp.analysis import Analysis
from cfp.plan import Plan, build_plan
from cfp.plan.build import analyze_for

NAMES = ("x", "y", "z")


def mesh_of(*shape: int) -> Mesh:
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), NAMES[: len(shape)])


@cache
def model(name: str, **options: Any) -> tuple[Any, Any]:
    layers = 2 if name == "moe" else 1
    return models.make_step(models.config(name, layers=layers, **options))


@cache
def analysis_of(name: str, mesh_shape: tuple[int, ...], **options: Any) -> Analysis:
    step, args = model(name, **options)
    return analyze_for(step, args, mesh_of(*mesh_shape))


def random_plan(name: str, mesh_shape: tuple[int, ...], seed: int, **options: Any) -> Plan:
    """A random strategy for every block."""
    analysis = analysis_of(name, mesh_shape, **options)
    random = np.random.default_rng(seed)
    options_of = [
        (*block.strategies(mesh_shape), *block.stream_strategies(mesh_shape))
        for block in analysis.blocks
    ]
    chosen = [each[random.integers(len(each))] for each in options_of]
    step, _ = model(name, **options)
    return build_plan(step, analysis, mesh_of(*mesh_shape), chosen, name=f"random{seed}")


def mlp_step(params: Any, x: Any, y: Any) -> Any:
    """Two products and a plain gradient step."""

    def loss(params: Any) -> Any:
        hidden = jax.nn.relu(x @ params["up"] + params["bias"])
        return jnp.mean((hidden @ params["down"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def mlp_args(rows: int = 16, width: int = 8, hidden: int = 32) -> tuple[Any, ...]:
    random = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    params = {"up": array(width, hidden), "bias": array(hidden), "down": array(hidden, width)}
    return params, array(rows, width), array(rows, width)
