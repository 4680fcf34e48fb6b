"""What JAX's runtime has and does not show; here, as all that is private in JAX."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax._src import core, distributed


def key_value_client() -> Any:
    """Returns the client of the store that all processes of the runtime share; None where this
    process is the only one."""
    return distributed.global_state.client


def coordinator_address() -> str | None:
    """Returns HOST:PORT of process 0 as the others know it; None where this is the only process."""
    address: str | None = distributed.global_state.coordinator_address
    return address


def without_mesh() -> contextlib.AbstractContextManager[Any]:
    """Sets aside the mesh of `jax.set_mesh`, which need not be a plan's. Inside a program that JAX
    is tracing it stays: JAX allows no other there."""
    if not core.trace_state_clean():
        return contextlib.nullcontext()
    nothing: contextlib.AbstractContextManager[Any] = jax.set_mesh(None)
    return nothing
