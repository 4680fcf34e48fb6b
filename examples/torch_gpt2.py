"""A PyTorch GPT-2 of Hugging Face, trained in JAX through `torchax` (the extra `cfp-jax[torch]`).

`extract_jax` gives the module as a JAX function of its parameters. Everything after that is an
ordinary training step, which `cfp.jit` splits.

    python examples/torch_gpt2.py --steps 5
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torchax
import transformers

import cfp

VOCAB, LENGTH, BATCH = 128, 16, 8


def make_model():
    """Returns the tensors of the module by name, and `forward(tensors, args, kwargs)` of JAX."""
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        use_cache=False,
        attn_implementation="eager",
    )
    module = transformers.GPT2LMHeadModel(config).eval()  # without dropout
    return torchax.extract_jax(module)


def main(steps, budget):
    tensors, forward = make_model()
    params = {n: t for n, t in tensors.items() if jnp.issubdtype(t.dtype, jnp.floating)}
    buffers = {name: tensors[name] for name in tensors if name not in params}  # masks
    optimizer = optax.adamw(1e-3)

    def loss_of(params, tokens):
        logits = forward({**params, **buffers}, (tokens,), {"return_dict": False})[0]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
        return losses.mean()

    def step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_of)(params, tokens)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    mesh = jax.make_mesh((4,), ("x",))
    step = cfp.jit(step, mesh=mesh, budget=budget)
    opt_state = optimizer.init(params)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, LENGTH), np.int32)
    losses = []
    for i in range(steps):
        params, opt_state, loss = step(params, opt_state, tokens)
        losses.append(float(loss))
        print(f"step {i}: loss {losses[-1]:.3f}")
    print(step.plan.show())
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
