"""Models made and compiled once per session, for compile time rather than speed."""

import functools

import jax
import pytest

from cfp import models
from cfp.models import train

# Four layers of the MoE, so that its pair of dense and expert layers comes twice.
TINY = {name: models.config(name, layers=4 if name == "moe" else 2) for name in models.NAMES}


def quick_jit(function, level=0):
    """jit that compiles in a third of the time, to code that is slow but right."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": level})


@functools.cache
def _compiled(config):
    step, args = models.make_step(config, abstract=False)
    return quick_jit(step, level=1), args  # some tests run it often


@functools.cache
def _first_step(config):
    step, args = _compiled(config)
    return step(*args)


@pytest.fixture(scope="session")
def compiled():
    """config -> the jitted step and its arguments."""
    return _compiled


@pytest.fixture(scope="session")
def first_step():
    """config -> what the step makes of its arguments."""
    return _first_step


@pytest.fixture(scope="session")
def gradients():
    """config, params, batch, key -> loss and gradients."""

    def run(config, params, batch, key=None):
        loss = functools.partial(train.model(config).loss, config=config)
        (value, _), grads = quick_jit(jax.value_and_grad(loss, has_aux=True))(params, batch, key)
        return value, grads

    return run
