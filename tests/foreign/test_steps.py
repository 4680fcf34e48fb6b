"""The foreign steps are sound themselves: they trace, run and train."""

import jax
import jax.numpy as jnp
import pytest

from . import MODELS, PLAIN
from .training import quick_jit

STEPS = MODELS | PLAIN


@pytest.fixture(params=STEPS)
def make(request):
    return STEPS[request.param]


def test_traces_without_arrays(make):
    step, args = make(abstract=True)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    shallower = make(layers=1, abstract=True)
    assert 0 < _contractions(*shallower) < _contractions(step, args)


def test_trains(make):
    step, args = make(layers=1)  # less to compile
    jitted = quick_jit(step)
    losses = []
    for _ in range(4):
        *carried, loss = jitted(*args)
        assert _types(tuple(carried)) == _types(args[: len(carried)])
        args = (*carried, *args[len(carried) :])
        losses.append(loss)
    assert jnp.isfinite(jnp.array(losses)).all()
    assert losses[-1] < losses[0]


def _contractions(step, args):
    text = str(jax.make_jaxpr(step)(*args))
    return sum(text.count(f" {name}[") for name in ("dot_general", "conv_general_dilated"))


def _types(tree):
    return jax.tree.map(jax.typeof, tree)
