"""Probes: what they compile to is what links count."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from cfp.calibration.probe import LONG_CHAIN, Probe, chain_program
from cfp.links.collectives import parse_collectives
from cfp.links.hlo import mesh_axes
from cfp.links.link import COLLECTIVES


@pytest.mark.parametrize("axes", [("y",), ("x", "y")], ids="+".join)
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_probe_is_a_chain_of_one_collective_of_its_bytes(
    kind: str, axes: tuple[str, ...]
) -> None:
    """The bytes are those that a compiled module's collectives are priced by."""
    mesh = Mesh(np.array(jax.devices("cpu")[:8]).reshape(2, 4), ("x", "y"))
    probe = Probe(kind, axes, math.prod(mesh.shape[axis] for axis in axes), 4096)
    jitted, (fill,) = chain_program(mesh, probe)
    compiled = jitted.lower(jax.ShapeDtypeStruct(fill.shape, fill.dtype)).compile()
    found = parse_collectives(compiled.as_text(), 8)
    assert {(one.kind, one.bytes) for one in found} == {(kind, 4096)}
    assert sum(one.times for one in found) == probe.chain == LONG_CHAIN
    spanned = tuple(mesh.axis_names.index(axis) for axis in axes)
    assert {mesh_axes(one.groups, (2, 4), kind) for one in found} == {spanned}
