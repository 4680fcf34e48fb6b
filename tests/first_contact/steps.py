"""Training steps in the habits of five kinds of users.

`STEPS` maps a name to a function that makes a `UserStep`, with or without donation. Nothing here is
bent towards the planner: steps are jitted by their library, change their arguments in place where
that is the habit, and take NumPy's arrays where data loaders give them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tests.foreign.training import ADAMW, SEQ, VOCAB, generator, next_token_loss, random_ids

BATCH = 4


@dataclass(frozen=True, slots=True)
class UserStep:
    """`carry(args, result)` gives the arguments of the next step and the loss of this one."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    carry: Callable[[tuple[Any, ...], Any], tuple[tuple[Any, ...], Any]]


def _first_arguments(args: tuple[Any, ...], result: Any) -> tuple[tuple[Any, ...], Any]:
    """The results before the loss take the place of the first arguments."""
    *carried, loss = result
    return (*carried, *args[len(carried) :]), loss


def _in_place(args: tuple[Any, ...], result: Any) -> tuple[tuple[Any, ...], Any]:
    return args, result


def _tokens() -> Any:
    return random_ids(generator(), VOCAB, BATCH, SEQ)


def nnx_live(donate: bool) -> UserStep:
    """Flax NNX's own idiom: the step changes the model and the optimizer it is given."""
    from flax import nnx

    from tests.foreign.flax_nnx import Decoder

    model = Decoder(1, nnx.Rngs(0))
    model.train()
    optimizer = nnx.Optimizer(model, ADAMW, wrt=nnx.Param)

    def train_step(model: Any, optimizer: Any, tokens: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            return next_token_loss(model(tokens), tokens)

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    jitted = nnx.jit(train_step, donate_argnums=(0, 1) if donate else ())
    return UserStep(jitted, (model, optimizer, _tokens()), _in_place)


def nnx_split(donate: bool) -> UserStep:
    """The functional idiom: a graph definition closed over, a state passed round."""
    from flax import nnx

    from tests.foreign.flax_nnx import Decoder

    model = Decoder(1, nnx.Rngs(0))
    model.train()
    optimizer = nnx.Optimizer(model, ADAMW, wrt=nnx.Param)
    graphdef, state = nnx.split((model, optimizer))

    def train_step(state: Any, tokens: Any) -> Any:
        model, optimizer = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(lambda m: next_token_loss(m(tokens), tokens))(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    jitted = jax.jit(train_step, donate_argnums=0 if donate else ())
    return UserStep(jitted, (state, _tokens()), _first_arguments)


def equinox_as_is(donate: bool) -> UserStep:
    """A module with functions and flags among its leaves, through `eqx.filter_jit`."""
    import equinox as eqx

    from tests.foreign.equinox_vmap import Decoder

    model = Decoder(1, jax.random.key(0))
    state = ADAMW.init(eqx.filter(model, eqx.is_array))

    def train_step(data: Any, model: Any, state: Any) -> Any:
        tokens, key = data

        @eqx.filter_value_and_grad
        def loss_fn(model: Any) -> Any:
            logits = jax.vmap(model)(tokens, jax.random.split(key, len(tokens)))
            return next_token_loss(logits, tokens)

        loss, grads = loss_fn(model)
        updates, new = ADAMW.update(grads, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), new, loss

    def carry(args: tuple[Any, ...], result: Any) -> tuple[tuple[Any, ...], Any]:
        *carried, loss = result
        return (args[0], *carried), loss

    jitted = eqx.filter_jit(train_step, donate="all-except-first" if donate else "none")
    return UserStep(jitted, ((_tokens(), jax.random.key(1)), model, state), carry)


def equinox_partitioned(donate: bool) -> UserStep:
    """The arrays of a module passed, the rest closed over."""
    import equinox as eqx

    from tests.foreign.equinox_vmap import Decoder

    params, static = eqx.partition(Decoder(1, jax.random.key(0)), eqx.is_array)

    def train_step(params: Any, state: Any, tokens: Any, key: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            model = eqx.combine(params, static)
            logits = jax.vmap(model)(tokens, jax.random.split(key, len(tokens)))
            return next_token_loss(logits, tokens)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, new = ADAMW.update(grads, state, params)
        return eqx.apply_updates(params, updates), new, loss

    jitted = jax.jit(train_step, donate_argnums=(0, 1) if donate else ())
    args = (params, ADAMW.init(params), _tokens(), jax.random.key(1))
    return UserStep(jitted, args, _first_arguments)


def huggingface_train_state(donate: bool) -> UserStep:
    """Hugging Face's Flax GPT-2 in a `TrainState`, with dropout and a loader's batch."""
    import transformers as hf
    from flax.training.train_state import TrainState

    from tests.foreign.training import HEADS, HIDDEN

    config = hf.GPT2Config(
        vocab_size=VOCAB,
        n_positions=SEQ,
        n_embd=HIDDEN,
        n_layer=1,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = hf.FlaxGPT2LMHeadModel(config, seed=0)
    state = TrainState.create(apply_fn=model.__call__, params=model.params, tx=ADAMW)
    tokens = _tokens()
    batch = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}

    def train_step(state: Any, batch: Any, key: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            key_ = jax.random.fold_in(key, state.step)
            logits = state.apply_fn(**batch, params=params, dropout_rng=key_, train=True).logits
            return next_token_loss(logits, batch["input_ids"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    jitted = jax.jit(train_step, donate_argnums=0 if donate else ())
    return UserStep(jitted, (state, batch, jax.random.key(1)), _first_arguments)


def plain_accumulating(donate: bool) -> UserStep:
    """Plain JAX: accumulated gradients, `jax.checkpoint`, bf16 and a loss scale."""
    from tests.foreign.plain.accumulation import make_step

    step, args = make_step(layers=1, batch=2 * BATCH)
    jitted = jax.jit(step, donate_argnums=(0, 1) if donate else ())
    return UserStep(jitted, args, _first_arguments)


STEPS: dict[str, Callable[[bool], UserStep]] = {
    step.__name__: step
    for step in (
        nnx_live,
        nnx_split,
        equinox_as_is,
        equinox_partitioned,
        huggingface_train_state,
        plain_accumulating,
    )
}
