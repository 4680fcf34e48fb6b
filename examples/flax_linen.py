"""Flax Linen: a `TrainState` that the step takes and returns, donated.

python examples/flax_linen.py --steps 20
"""

import argparse

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

import cfp

VOCAB, LENGTH, WIDTH, BATCH = 64, 16, 32, 8


class Decoder(nn.Module):
    layers: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCAB, WIDTH)(tokens)
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(VOCAB)(x)


def step(state, tokens):
    def loss_of(params):
        logits, labels = state.apply_fn({"params": params}, tokens)[:, :-1], tokens[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def main(steps, budget):
    model = Decoder(layers=2)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, LENGTH), np.int32)
    params = model.init(jax.random.key(0), tokens)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(3e-3))
    mesh = jax.make_mesh((4,), ("x",))
    train = cfp.jit(step, mesh=mesh, budget=budget, donate_argnums=0)
    losses = []
    for _ in range(steps):
        state, loss = train(state, tokens)
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} after {int(state.step)} steps")
    print(train.plan.show())
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
