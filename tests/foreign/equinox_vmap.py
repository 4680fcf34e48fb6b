"""A decoder of Equinox layers: written for one sequence, mapped over the batch by `vmap`."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .training import (
    DROPOUT,
    HEADS,
    HIDDEN,
    MLP,
    SEQ,
    VOCAB,
    arguments,
    dropout_train_step,
    generator,
    materialize,
    next_token_loss,
    random_ids,
)


class Layer(eqx.Module):
    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        attention_key, up_key, down_key = jax.random.split(key, 3)
        self.attention_norm = eqx.nn.LayerNorm(HIDDEN)
        self.attention = eqx.nn.MultiheadAttention(
            HEADS, HIDDEN, dropout_p=DROPOUT, key=attention_key
        )
        self.mlp_norm = eqx.nn.LayerNorm(HIDDEN)
        self.up = eqx.nn.Linear(HIDDEN, MLP, key=up_key)
        self.down = eqx.nn.Linear(MLP, HIDDEN, key=down_key)
        self.dropout = eqx.nn.Dropout(DROPOUT)

    def __call__(self, x, key):
        attention_key, dropout_key = jax.random.split(key)
        y = jax.vmap(self.attention_norm)(x)
        causal = jnp.tril(jnp.ones((len(x), len(x)), bool))
        x = x + self.attention(y, y, y, mask=causal, key=attention_key)
        y = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.mlp_norm)(x)))
        return x + self.dropout(jax.vmap(self.down)(y), key=dropout_key)


class Decoder(eqx.Module):
    tokens: eqx.nn.Embedding
    positions: jax.Array
    layers: list[Layer]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, layers, key):
        token_key, position_key, head_key, *layer_keys = jax.random.split(key, 3 + layers)
        self.tokens = eqx.nn.Embedding(VOCAB, HIDDEN, key=token_key)
        self.positions = 0.1 * jax.random.normal(position_key, (SEQ, HIDDEN))
        self.layers = [Layer(layer_key) for layer_key in layer_keys]
        self.norm = eqx.nn.LayerNorm(HIDDEN)
        self.head = eqx.nn.Linear(HIDDEN, VOCAB, key=head_key)

    def __call__(self, tokens, key):
        x = jax.vmap(self.tokens)(tokens) + self.positions
        for layer, layer_key in zip(
            self.layers, jax.random.split(key, len(self.layers)), strict=True
        ):
            x = layer(x, layer_key)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def make(layers=2, batch=8, abstract=False):
    def init(key):
        return eqx.filter(Decoder(layers, key), eqx.is_array)

    skeleton = eqx.filter_eval_shape(Decoder, layers, jax.random.key(0))
    static = eqx.filter(skeleton, lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct))

    def loss_fn(params, tokens, key):
        model = eqx.combine(params, static)
        logits = jax.vmap(model)(tokens, jax.random.split(key, len(tokens)))
        return next_token_loss(logits, tokens)

    params = materialize(init, jax.random.key(0), abstract=abstract)
    tokens = random_ids(generator(), VOCAB, batch, SEQ)
    return dropout_train_step(loss_fn), arguments(params, tokens, with_key=True, abstract=abstract)
