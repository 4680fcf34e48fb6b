"""A decoder of Flax Linen's own layers, trained through a `TrainState`."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from .training import (
    ADAMW,
    DROPOUT,
    HEADS,
    HIDDEN,
    MLP,
    SEQ,
    VOCAB,
    generator,
    materialize,
    next_token_loss,
    random_ids,
)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, mask, train):
        attention = nn.MultiHeadDotProductAttention(
            num_heads=HEADS, dropout_rate=DROPOUT, deterministic=not train
        )
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        y = nn.gelu(nn.Dense(MLP)(nn.LayerNorm()(x)))
        return x + nn.Dropout(DROPOUT, deterministic=not train)(nn.Dense(HIDDEN)(y))


class Decoder(nn.Module):
    layers: int

    @nn.compact
    def __call__(self, tokens, train=False):
        x = nn.Embed(VOCAB, HIDDEN)(tokens) + nn.Embed(SEQ, HIDDEN)(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = Layer()(x, mask, train)
        return nn.Dense(VOCAB)(nn.LayerNorm()(x))


def make(layers=2, batch=8, abstract=False):
    model = Decoder(layers)

    def step(state, tokens, key):
        def loss_fn(params):
            logits = state.apply_fn({"params": params}, tokens, train=True, rngs={"dropout": key})
            return next_token_loss(logits, tokens)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    def build(key, tokens):
        params = model.init(key, tokens)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=ADAMW), tokens, key

    tokens = random_ids(generator(), VOCAB, batch, SEQ)
    return step, materialize(build, jax.random.key(0), tokens, abstract=abstract)
