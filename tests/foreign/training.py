"""What the models share: their sizes, losses, the optax training step and its arguments."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

# Every size divides by 4; sizes of different meaning differ, so that no dim passes for another.
HIDDEN, HEADS, MLP, SEQ, VOCAB = 48, 4, 192, 16, 128
DROPOUT = 0.1
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


def arguments(init, data, optimizer=ADAMW, *, with_key=False, abstract=False):
    """`(params, opt_state, batch)` and a key where asked, from `init(key)` and `data(key)`."""

    def build():
        params = init(jax.random.key(0))
        args = params, optimizer.init(params), data(jax.random.key(1))
        return (*args, jax.random.key(2)) if with_key else args

    return materialize(build, abstract)


def materialize(build, abstract):
    """The arrays that `build()` makes, or their shapes alone."""
    return jax.eval_shape(build) if abstract else jax.jit(build)()


def random_tokens(key, batch, seq=SEQ):
    return jax.random.randint(key, (batch, seq), 0, VOCAB)


def cross_entropy(logits, labels):
    """The mean negative log-likelihood of the integer `labels`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def next_token_loss(logits, tokens):
    """Each position predicts the token after it."""
    return cross_entropy(logits[:, :-1], tokens[:, 1:])
