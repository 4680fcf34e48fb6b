"""Hugging Face's Flax GPT-2 with dropout, built from a config: nothing is downloaded.

python examples/huggingface_flax.py --steps 20
"""

import argparse

import jax
import numpy as np
import optax
import transformers

import cfp

VOCAB, LENGTH, BATCH = 64, 16, 8
OPTIMIZER = optax.adamw(1e-3)


def make_model():
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.FlaxGPT2LMHeadModel(config, seed=0)


def main(steps, budget):
    model = make_model()

    def loss_of(params, tokens, key):
        logits = model(tokens, params=params, dropout_rng=key, train=True).logits
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
        return losses.mean()

    def step(params, opt_state, tokens, key):
        loss, grads = jax.value_and_grad(loss_of)(params, tokens, key)
        updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    mesh = jax.make_mesh((4,), ("x",))
    train = cfp.jit(step, mesh=mesh, budget=budget, donate_argnums=(0, 1))
    params, opt_state = model.params, OPTIMIZER.init(model.params)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, LENGTH), np.int32)
    losses = []
    for i in range(steps):
        params, opt_state, loss = train(params, opt_state, tokens, jax.random.key(i))
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(train.plan.show())
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # where there is no accelerator
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="60s")
    main(**vars(parser.parse_args()))
