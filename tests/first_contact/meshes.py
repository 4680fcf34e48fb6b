"""Meshes of either kind of axes."""

from __future__ import annotations

import math

import jax
from jax.sharding import AxisType, Mesh


def mesh(shape: tuple[int, ...], kind: AxisType) -> Mesh:
    names = ("data", "model")[: len(shape)]
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=devices)
