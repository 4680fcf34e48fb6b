"""Mixed precision: parameters and optimizer state in float32, the model computes in bfloat16.

python examples/bf16.py --steps 20
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cfp

ROWS, WIDTH, HIDDEN, LAYERS = 16, 32, 128, 2
OPTIMIZER = optax.adamw(3e-3)


def loss_of(params, batch):
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    hidden = batch["x"].astype(jnp.bfloat16)
    for layer in half:
        hidden = hidden + jax.nn.gelu(hidden @ layer["up"]) @ layer["down"]
    return jnp.mean((hidden.astype(jnp.float32) - batch["y"]) ** 2)


def step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def main(steps, budget):
    random = np.random.default_rng(0)

    def array(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    params = [{"up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)} for _ in range(LAYERS)]
    batch = {"x": array(ROWS, WIDTH), "y": array(ROWS, WIDTH)}
    opt_state = OPTIMIZER.init(params)
    mesh = jax.make_mesh((4,), ("x",))
    train = cfp.jit(step, mesh=mesh, budget=budget, donate_argnums=(0, 1))
    losses = []
    for _ in range(steps):
        params, opt_state, loss = train(params, opt_state, batch)
        losses.append(float(loss))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; parameters are {params[0]['up'].dtype}")
    print(train.plan.show())
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
