"""What JAX's distributed runtime has and does not show; here, as all that is private in JAX."""

from __future__ import annotations

from typing import Any

from jax._src import distributed


def key_value_client() -> Any:
    """Of the store that all processes of the runtime share; None where this is the only one."""
    return distributed.global_state.client
