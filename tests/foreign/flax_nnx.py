"""A decoder of Flax NNX modules and an `nnx.Optimizer`, which the step merges and splits again.

The graph definition is closed over. The state is one pytree: the parameters, the dropouts' random
streams (typed keys and their counters) and what the optimizer keeps.
"""

import jax
import jax.numpy as jnp
from flax import nnx

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
    def init(key):
        model = Decoder(layers, nnx.Rngs(key))
        model.train()
        return model, nnx.Optimizer(model, ADAMW, wrt=nnx.Param)

    graphdef = nnx.graphdef(nnx.eval_shape(init, jax.random.key(0)))

    def step(state, tokens):
        model, optimizer = nnx.merge(graphdef, state)

        def loss_fn(model):
            return next_token_loss(model(tokens), tokens)

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    def build(key, tokens):
        return nnx.state(init(key)), tokens

    tokens = random_ids(generator(), VOCAB, batch, SEQ)
    return step, materialize(build, jax.random.key(0), tokens, abstract=abstract)
