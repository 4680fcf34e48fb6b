"""Gradient accumulation: one step adds up the gradients of several micro-batches under `lax.scan`.

The plan splits the rows of a micro-batch, never the loop.

    python examples/gradient_accumulation.py --steps 20
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cfp

MICRO_BATCHES, ROWS, WIDTH, HIDDEN = 4, 8, 32, 128
OPTIMIZER = optax.adamw(3e-3)


def loss_of(params, batch):
    hidden = jax.nn.gelu(batch["x"] @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


def step(params, opt_state, batches):
    def add(carried, batch):
        total, grads = carried
        loss, more = jax.value_and_grad(loss_of)(params, batch)
        return (total + loss, jax.tree.map(jnp.add, grads, more)), None

    start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    (total, grads), _ = jax.lax.scan(add, start, batches)
    grads = jax.tree.map(lambda g: g / MICRO_BATCHES, grads)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, total / MICRO_BATCHES


def main(steps, budget):
    random = np.random.default_rng(0)

    def array(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)

    params = {"up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)}
    batches = {name: array(MICRO_BATCHES, ROWS, WIDTH) for name in ("x", "y")}
    opt_state = OPTIMIZER.init(params)
    mesh = jax.make_mesh((4,), ("x",))
    train = cfp.jit(step, mesh=mesh, budget=budget, donate_argnums=(0, 1))
    losses = []
    for _ in range(steps):
        params, opt_state, loss = train(params, opt_state, batches)
        losses.append(float(loss))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    print(train.plan.show())
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
