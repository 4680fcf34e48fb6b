"""Steps compiled once per session, and for compile time rather than speed."""

import functools

import jax
import pytest

from cfp import models


@functools.cache
def _compiled(config):
    step, args = models.make_step(config)
    return jax.jit(step, compiler_options={"xla_backend_optimization_level": 0}), args


@pytest.fixture(scope="session")
def compiled():
    """config -> (jitted step, arguments)."""
    return _compiled
