"""The training step: loss, gradients, AdamW. A pure function of the state, a batch and a key."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cfp.errors import CfpError
from cfp.models import bert, gpt, llama, moe
from cfp.models.config import Config
from cfp.models.data import synthetic_batch
from cfp.models.layers import Params

_ABSTRACT_BYTES = 2**30  # a larger state is not made unasked: it takes time, and may not fit

Step = Callable[..., tuple["TrainState", dict[str, Array]]]


class Model(Protocol):
    """What a model's module has."""

    def init(self, config: Config, key: Array) -> Params: ...

    def loss(
        self, params: Params, batch: Params, key: Array | None, config: Config
    ) -> tuple[Array, dict[str, Array]]: ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TrainState:
    """What one step hands to the next."""

    params: Params
    opt_state: Any
    step: Array


def model(config: Config) -> Model:
    modules: dict[str, Model] = {"bert": bert, "gpt": gpt, "moe": moe, "llama": llama}
    return modules[config.model]


def make_step(config: Config, *, abstract: bool | None = None) -> tuple[Step, tuple[Any, ...]]:
    """Returns the training step of a model, and arguments for it.

    The step is `step(state, batch, key) -> (state, metrics)`, without `key` where the model has no
    dropout. With `abstract` the arguments are `ShapeDtypeStruct`s and cost no memory; left out,
    they are so when the state would be larger than 1 GiB.
    """
    optimizer = make_optimizer(config)
    loss = functools.partial(model(config).loss, config=config)

    def step(
        state: TrainState, batch: dict[str, Array], key: Array | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        if config.dropout and key is None:
            raise CfpError("The step needs a `key`: the model has dropout. Pass jax.random.key(0).")
        grads, metrics = jax.grad(loss, has_aux=True)(state.params, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params=params, opt_state=opt_state, step=state.step + 1), metrics

    shapes = jax.eval_shape(lambda: _make_args(config))
    if abstract is None:
        abstract = _bytes(shapes[0]) > _ABSTRACT_BYTES
    return step, shapes if abstract else _make_args(config)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    adamw = optax.adamw(config.learning_rate, weight_decay=0.01)
    if config.clip_norm is None:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


def init_state(config: Config, seed: int = 0) -> TrainState:
    params = model(config).init(config, jax.random.key(seed))
    opt_state = make_optimizer(config).init(params)
    return TrainState(params=params, opt_state=opt_state, step=jnp.zeros((), jnp.int32))


def num_params(config: Config) -> int:
    """Returns how many numbers the model learns, and makes none of them."""
    config = replace(config, scan=True)  # the same count, in fewer arrays
    init = functools.partial(model(config).init, config)
    params = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _make_args(config: Config) -> tuple[Any, ...]:
    args = (init_state(config), synthetic_batch(config))
    return (*args, jax.random.key(0)) if config.dropout else args


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
