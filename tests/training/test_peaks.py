"""Peaks of devices, by JAX's names of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from cfp.trace import trace
from cfp.training.peaks import peak_flops, product_dtype


@pytest.mark.parametrize(
    ("kind", "dtype", "tera"),
    [
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H200", "float32", 494.7),
        ("NVIDIA H200 NVL", "bfloat16", 835.5),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "float16", 756.0),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L40", "bfloat16", None),  # not an L4
        ("NVIDIA H200", "float64", None),
        ("cpu", "float32", None),
    ],
)
def test_peaks(kind: str, dtype: str, tera: float | None) -> None:
    found = peak_flops(kind, dtype)
    assert found is None if tera is None else found == pytest.approx(tera * 1e12)


def test_the_format_of_most_products_counts() -> None:
    def step(x: jax.Array, w: jax.Array, small: jax.Array) -> jax.Array:
        return jnp.sum((x @ w).astype(jnp.float32)) + jnp.sum(small @ small)

    shape = jax.ShapeDtypeStruct
    half, single = jnp.bfloat16, jnp.float32
    args = shape((64, 64), half), shape((64, 64), half), shape((8, 8), single)
    assert product_dtype(trace(step, *args)) == "bfloat16"
