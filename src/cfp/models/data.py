"""Synthetic tasks that a model can learn, and soon: the loss falls within a hundred steps.

Decoders continue an arithmetic progression of token ids, which starts anywhere, goes up by its own
stride (1 to 4) and wraps round the vocabulary: two tokens tell all others. BERT gets a pair of
segments, each a token of its own repeated, and finds the hidden ones from the rest of the segment.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from cfp.models.config import Config

PAD, MASK, SPECIAL = 0, 1, 2  # BERT's special tokens, and how many there are
STRIDES = 4  # sequences count up by 1 to 4: few enough for a tiny model to learn in a test


def synthetic_batch(config: Config, seed: int | Array = 0) -> dict[str, Array]:
    """Returns a batch for the model's `loss`, drawn from `seed`."""
    batch: dict[str, Array] = _draw(config, seed)
    return batch


@functools.partial(jax.jit, static_argnums=0)
def _draw(config: Config, seed: int | Array) -> dict[str, Array]:
    key = jax.random.key(seed)
    return _masked(config, key) if config.model == "bert" else _next_token(config, key)


def _next_token(config: Config, key: Array) -> dict[str, Array]:
    start, stride = jax.random.split(key)
    first = jax.random.randint(start, (config.batch, 1), 0, config.vocab)
    step = jax.random.randint(stride, (config.batch, 1), 1, STRIDES + 1)
    ids = (first + step * jnp.arange(config.seq + 1)) % config.vocab
    return {"tokens": ids[:, :-1], "labels": ids[:, 1:]}


def _masked(config: Config, key: Array) -> dict[str, Array]:
    """Returns a batch by BERT's recipe: 80 % of the chosen 15 % of the tokens are hidden, 10 %
    become random tokens and 10 % are left alone."""
    shape = (config.batch, config.seq)
    lengths, ids, choice, fate, noise = jax.random.split(key, 5)
    length = jax.random.randint(lengths, (config.batch, 1), (config.seq + 1) // 2, config.seq + 1)
    position = jnp.arange(config.seq)
    real = position < length
    second = (position >= length // 2) & real
    pair = jax.random.randint(ids, (2, config.batch, 1), SPECIAL, config.vocab)
    labels = jnp.where(real, jnp.where(second, pair[1], pair[0]), PAD)

    chosen = (jax.random.uniform(choice, shape) < 0.15) & real
    kind = jax.random.uniform(fate, shape)
    other = jax.random.randint(noise, shape, SPECIAL, config.vocab)
    tokens = jnp.where(kind < 0.8, MASK, jnp.where(kind < 0.9, other, labels))
    return {
        "tokens": jnp.where(chosen, tokens, labels),
        "segments": second.astype(jnp.int32),
        "mask": real,
        "labels": labels,
        "weights": chosen.astype(jnp.float32),
    }
