"""Plain JAX: a step of pytrees, split over 4 devices by one changed line.

python examples/plain_jax.py --steps 20
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import cfp


def loss_of(params, batch):
    hidden = batch["x"]
    for layer in params:
        hidden = hidden + jnp.tanh(hidden @ layer["up"]) @ layer["down"]
    return jnp.mean((hidden - batch["y"]) ** 2)


def step(params, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def make_args(layers=2, width=32, hidden=128, rows=16):
    random = np.random.default_rng(0)

    def array(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    params = [{"up": array(width, hidden), "down": array(hidden, width)} for _ in range(layers)]
    return params, {"x": array(rows, width), "y": array(rows, width)}


def main(steps, budget):
    mesh = jax.make_mesh((4,), ("x",))
    train = cfp.jit(step, mesh=mesh, budget=budget)  # in place of jax.jit(step)
    params, batch = make_args()
    losses = []
    for _ in range(steps):
        params, loss = train(params, batch)
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
