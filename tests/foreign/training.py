"""What the models share: their sizes, losses, the optax training step and its arguments."""

from functools import partial

import jax
import numpy as np
import optax

# Every size divides by 4, and no two are equal, so that no dim passes for another.
HIDDEN, HEADS, MLP, SEQ, VOCAB = 48, 4, 192, 16, 128
DROPOUT = 0.1
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
ADAMW = optax.adamw(3e-3)


def train_step(loss_fn, optimizer=ADAMW):
    """The step of a deterministic `loss_fn(params, batch)`."""

    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def dropout_train_step(loss_fn, optimizer=ADAMW):
    """The step of a `loss_fn(params, batch, key)` that draws random numbers."""

    def step(params, opt_state, batch, key):
        return train_step(partial(loss_fn, key=key), optimizer)(params, opt_state, batch)

    return step


def arguments(params, batch, optimizer=ADAMW, *, with_key=False, abstract=False):
    """`(params, opt_state, batch)`, and a key where asked."""

    def build(params, batch, key):
        args = params, optimizer.init(params), batch
        return (*args, key) if with_key else args

    return materialize(build, params, batch, jax.random.key(1), abstract=abstract)


def materialize(build, *inputs, abstract):
    """The arrays that `build(*inputs)` makes, or their shapes alone."""
    return jax.eval_shape(build, *inputs) if abstract else quick_jit(build)(*inputs)


def quick_jit(function):
    """`jax.jit` for what runs a few times only: it compiles in about half the time."""
    return jax.jit(function, compiler_options=QUICK)


def generator():
    """Returns what draws initial values and data: NumPy, which has nothing to compile."""
    return np.random.default_rng(0)


def noise(rng, shape, std=1.0):
    return rng.normal(0.0, std, shape).astype(np.float32)


def random_ids(rng, limit, *shape):
    return rng.integers(0, limit, shape, np.int32)


def cross_entropy(logits, labels):
    """The mean negative log-likelihood of the integer `labels`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def next_token_loss(logits, tokens):
    """Each position predicts the token after it."""
    return cross_entropy(logits[:, :-1], tokens[:, 1:])
