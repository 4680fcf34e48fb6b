"""Peaks of devices, by JAX's names of them."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from cfp.trace import trace
from cfp.training.peaks import PEAKS, peak_flops, product_dtype


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
        ("NVIDIA A100 80GB PCIe", "float32", 156.0),
        ("NVIDIA H100 NVL", "float32", 417.5),
        ("NVIDIA B200", "float32", 1100.0),
        ("NVIDIA GB200", "bfloat16", 2500.0),
        ("NVIDIA L40", "bfloat16", None),  # not an L4
        ("NVIDIA H100", "bfloat16", None),  # nobody knows which
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),  # a seventh of one
        ("NVIDIA A100X", "bfloat16", None),
        ("NVIDIA H800", "bfloat16", None),
        ("NVIDIA H200", "float64", None),
        ("cpu", "float32", None),
    ],
)
def test_peaks(kind: str, dtype: str, tera: float | None) -> None:
    found = peak_flops(kind, dtype)
    assert found is None if tera is None else found == pytest.approx(tera * 1e12)


def test_every_peak_has_a_document() -> None:
    """TF32 has half the rate of bfloat16, up to how the documents round: a figure with sparsity in
    the place of one without would be off by two."""
    for name, peak in PEAKS.items():
        assert re.fullmatch(r"NVIDIA .*(datasheet|white paper).*", peak.source), name
        assert peak.half / peak.single == pytest.approx(2, rel=0.025), name


def test_the_page_has_the_same_figures() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [A-Z]+\d+\w?[^|]* \| ([\d.]+)[^|]* \| ([\d.]+)[^|]* \|", page, re.MULTILINE
    )
    assert [(float(half), float(single)) for half, single in rows] == [
        (peak.half, peak.single) for peak in PEAKS.values()
    ]


def test_the_format_of_most_products_counts() -> None:
    def step(x: jax.Array, w: jax.Array, small: jax.Array) -> jax.Array:
        return jnp.sum((x @ w).astype(jnp.float32)) + jnp.sum(small @ small)

    shape = jax.ShapeDtypeStruct
    half, single = jnp.bfloat16, jnp.float32
    args = shape((64, 64), half), shape((64, 64), half), shape((8, 8), single)
    assert product_dtype(trace(step, *args)) == "bfloat16"
