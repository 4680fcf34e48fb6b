"""Flax NNX and optax: the step changes the model and the optimizer that it is given.

python examples/flax_nnx.py --steps 20
"""

import argparse

import jax
import numpy as np
import optax
from flax import nnx

import cfp

VOCAB, LENGTH, WIDTH, HEADS, BATCH = 64, 16, 32, 4, 8


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=HEADS, in_features=WIDTH, decode=False, rngs=rngs
        )
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norm(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(x)))


class Decoder(nnx.Module):
    def __init__(self, layers, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(layers)])
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, tokens):
        x, mask = self.embed(tokens), nnx.make_causal_mask(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


@nnx.jit
def train_step(model, optimizer, tokens):
    def loss_of(model):
        logits, labels = model(tokens)[:, :-1], tokens[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def main(steps, budget):
    model = Decoder(2, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, LENGTH), np.int32)
    mesh = jax.make_mesh((4,), ("x",))
    train = cfp.jit(train_step, mesh=mesh, budget=budget)  # the one changed line
    losses = [float(train(model, optimizer, tokens)) for _ in range(steps)]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(train.plan.show())
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
