"""An orbax checkpoint that is saved under one plan and restored under another plan and mesh.

A checkpoint holds whole arrays, however they were split. Restoring reads each device's part
straight into the shardings of the other plan, which `plan.place` puts on the shapes.

    python examples/orbax_checkpoint.py --steps 10
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import cfp

OPTIMIZER = optax.adamw(3e-3)


def loss_of(params, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)


def step(state, batch):
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt_state": opt_state}, loss


def make_args():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(32, 128), (128, 32), (16, 32), (16, 32)]
    up, down, x, y = (jax.random.normal(k, s) / 8 for k, s in zip(keys, shapes, strict=True))
    params = {"up": up, "down": down}
    return {"params": params, "opt_state": OPTIMIZER.init(params)}, {"x": x, "y": y}


def train(planned, state, batch, steps):
    losses = []
    for _ in range(steps):
        state, loss = planned(state, batch)
        losses.append(float(loss))
    return state, losses


def main(steps, budget):
    state, batch = make_args()
    first = cfp.jit(step, mesh=jax.make_mesh((4,), ("x",)), budget=budget)
    state, losses = train(first, state, batch, steps)
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(folder, "state"), state)
        checkpointer.wait_until_finished()
        other = jax.make_mesh((2, 2), ("data", "model"))
        shapes = jax.eval_shape(make_args)
        plan = cfp.templates.megatron(step, *shapes, mesh=other)  # or cfp.plan, or cfp.load
        wanted = plan.place_argument("state", shapes[0])  # shapes with this plan's shardings
        restored = checkpointer.restore(Path(folder, "state"), wanted)
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(one, two)
    was, now = (tree["params"]["up"].sharding.spec for tree in (state, restored))
    print(f"`up` was {was} on 4 devices and is {now} on 2x2")
    _, more = train(plan.jit(step), restored, batch, steps)
    print(f"loss {losses[0]:.5f} -> {losses[-1]:.5f}, restored -> {more[-1]:.5f}")
    return losses + more


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
