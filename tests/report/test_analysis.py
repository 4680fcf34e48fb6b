"""What `cfp analyze` prints, whole. `pytest --update-goldens` rewrites tests/golden."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

import cfp
from cfp.models import config, make_step
from cfp.report import show_analysis


@pytest.mark.parametrize("name", ["gpt", "moe", "llama"])
def test_tables(name: str, golden: Callable[[str, str], None]) -> None:
    layers = 4 if name == "moe" else 3
    step, args = make_step(config(name, layers=layers), abstract=True)
    text = io.StringIO()
    show_analysis(cfp.analyze(step, *args, mesh_shape=(4,)), Console(file=text, width=140))
    head, _, tables = text.getvalue().partition("Distinct segments")
    assert "ParallelBlocks" in head  # the line with the times
    golden(f"analyze_{name}.txt", tables)


def test_opaque_operations_are_listed() -> None:
    import jax
    import jax.numpy as jnp

    def step(w, x):  # type: ignore[no-untyped-def]
        return jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x @ w)

    text = io.StringIO()
    analysis = cfp.analyze(step, jnp.ones((4, 4)), jnp.ones((8, 4)), mesh_shape=(2,))
    show_analysis(analysis, Console(file=text, width=140))
    assert "Opaque: cond (1). Blocks end there; XLA propagates through." in text.getvalue()
