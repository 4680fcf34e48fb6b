"""Equinox: a module with leaves that are no arrays (its activation), through `eqx.filter_jit`.

python examples/equinox_mlp.py --steps 20
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import cfp

OPTIMIZER = optax.adam(1e-2)


@eqx.filter_jit(donate="all-except-first")
def train_step(batch, model, opt_state):
    @eqx.filter_value_and_grad
    def loss_of(model):
        return jnp.mean((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2)

    loss, grads = loss_of(model)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def main(steps, budget):
    keys = jax.random.split(jax.random.key(0), 3)
    model = eqx.nn.MLP(16, 16, 64, depth=2, activation=jax.nn.gelu, key=keys[0])
    opt_state = OPTIMIZER.init(eqx.filter(model, eqx.is_array))
    batch = {
        name: jax.random.normal(key, (32, 16)) for name, key in zip("xy", keys[1:], strict=True)
    }
    mesh = jax.make_mesh((4,), ("x",))
    train = cfp.jit(train_step, mesh=mesh, budget=budget)  # the one changed line
    losses = []
    for _ in range(steps):
        model, opt_state, loss = train(batch, model, opt_state)
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; the activation is {model.activation}")
    print(train.plan.show())
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
