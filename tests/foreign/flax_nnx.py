"""A decoder of Flax NNX modules; the step splits and merges it.

The graph definition is closed over. The state is one pytree of the parameters and of the dropout's
random streams, typed keys and their counters, which the step carries on.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .training import (
    ADAMW,
    DROPOUT,
    HEADS,
    HIDDEN,
    MLP,
    SEQ,
    VOCAB,
    materialize,
    next_token_loss,
    random_tokens,
)


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.attention_norm = nnx.LayerNorm(HIDDEN, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=HEADS, in_features=HIDDEN, dropout_rate=DROPOUT, decode=False, rngs=rngs
        )
        self.mlp_norm = nnx.RMSNorm(HIDDEN, rngs=rngs)
        self.up = nnx.Linear(HIDDEN, MLP, rngs=rngs)
        self.down = nnx.Linear(MLP, HIDDEN, rngs=rngs)
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.dropout(self.down(nnx.silu(self.up(self.mlp_norm(x)))))


class Decoder(nnx.Module):
    def __init__(self, layers, rngs):
        self.tokens = nnx.Embed(VOCAB, HIDDEN, rngs=rngs)
        self.positions = nnx.Embed(SEQ, HIDDEN, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(HIDDEN, rngs=rngs)

    def __call__(self, tokens):
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.tokens.attend(self.norm(x))


def make(layers=2, batch=8, abstract=False):
    def init():
        return Decoder(layers, nnx.Rngs(params=0, dropout=1))

    graphdef = nnx.graphdef(nnx.eval_shape(init))

    def step(state, opt_state, tokens):
        params, rest = nnx.split_state(state, nnx.Param, ...)

        def loss_fn(params):
            model = nnx.merge(graphdef, params, rest)
            loss = next_token_loss(model(tokens), tokens)
            return loss, nnx.state(model, nnx.Not(nnx.Param))

        (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = ADAMW.update(grads, opt_state, params)
        state = nnx.merge_state(optax.apply_updates(params, updates), rest)
        return state, opt_state, loss

    def build():
        state = nnx.state(init())
        opt_state = ADAMW.init(nnx.filter_state(state, nnx.Param))
        return state, opt_state, random_tokens(jax.random.key(1), batch)

    return step, materialize(build, abstract)
