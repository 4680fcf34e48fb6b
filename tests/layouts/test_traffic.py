"""Bytes and collectives counted from layouts: as by hand, and as the compiler sends them."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from cfp.blocks import build_blocks
from cfp.layouts import propagate
from cfp.layouts.traffic import Traffic, count_traffic
from cfp.links.collectives import parse_collectives
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.lower import lower
from cfp.trace import trace
from tests.profile.cases import kinds, two_products

TWICE = "all-reduce"  # every byte goes round to be summed, and again to be known
ONCE = "collective-permute"  # to one device, all of it


def product(w: Any, x: Any) -> Any:
    """[8,16] x [16,4], summed; nothing but a gradient comes back."""
    return jax.grad(lambda w: (x @ w).sum())(w)


def count_product(split: str, mesh_shape: tuple[int, ...] = (4,)) -> Traffic:
    graph = trace(product, jnp.zeros((16, 4)), jnp.zeros((8, 16)))
    blocks = build_blocks(graph, mesh_shape)
    (block,) = blocks.blocks
    names = [candidate.name for candidate in block.candidates]
    strategy = tuple(names.index(split) for _ in mesh_shape)
    return count_traffic(graph, propagate(graph, blocks, [strategy], mesh_shape), mesh_shape)


def test_a_product_by_hand() -> None:
    """Summed: the gradient, nothing, the product; and a scalar where its dims are split."""
    scalar = 2 * 3 / 4 * 4
    assert count_product("batch").sent_bytes == [2 * 3 / 4 * (16 * 4 * 4) + scalar]
    assert count_product("output features").sent_bytes == [scalar]
    assert count_product("input features").sent_bytes == [2 * 3 / 4 * (8 * 4 * 4)]
    rows = count_product("batch", (2, 4)).sent_bytes
    assert rows == [2 * share * (16 * 4 * 4 + 4) for share in (1 / 2 / 4, 3 / 4)]


def test_its_collectives_by_hand() -> None:
    """A collective counts however small it is: the scalar is one of them. An axis of one device has
    none."""
    found = {
        split: count_product(split) for split in ("batch", "output features", "input features")
    }
    assert {split: some.collectives for split, some in found.items()} == {
        "batch": [2],
        "output features": [1],
        "input features": [1],
    }
    assert count_product("batch", (2, 4)).collectives == [2, 2]
    assert count_product("batch", (1, 4)).collectives == [0, 2]


def test_work_is_shared_by_the_devices_that_split_it() -> None:
    alone, four = count_product("batch", (1,)), count_product("batch")
    assert alone.sent_bytes == [0]
    assert four.flops == alone.flops / 4 == 2 * (2 * 8 * 16 * 4) / 4  # two products
    spared = 3 / 4 * (8 * 4 * 4)  # of the product's rows; the gradient is whole on every device
    assert four.written_bytes == alone.written_bytes - spared


def compiled(kind: Kind, option: Option, mesh: Mesh) -> tuple[float, int]:
    """What the collectives of the compiled program send, and for how many tensors."""
    (layouts,) = kind.layouts(option)
    exported = jax.export.deserialize(bytearray(lower(kind.extracts[0], layouts, mesh)))
    shape: Any = jax.ShapeDtypeStruct
    jitted: Any = jax.jit(
        exported.call,
        in_shardings=exported.in_shardings_jax(mesh),
        out_shardings=exported.out_shardings_jax(mesh),
    )
    text = jitted.lower(*[shape(a.shape, a.dtype) for a in exported.in_avals]).compile().as_text()
    sent, tensors = 0.0, 0
    for found in parse_collectives(text, mesh.size):
        size = len(found.groups[0])
        share = 1.0 if found.kind == ONCE else (size - 1) / size
        sent += (2 if found.kind == TWICE else 1) * share * found.bytes * found.times
        tensors += len(found.pieces) * found.times
    return sent, tensors


@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)])
def test_it_is_what_the_compiler_sends(mesh_shape: tuple[int, ...]) -> None:
    devices = np.array(jax.devices()[:4]).reshape(mesh_shape)
    mesh = Mesh(devices, ("x", "y")[: len(mesh_shape)])
    (kind,) = kinds(two_products(mesh_shape))
    counted, sent, collectives, tensors = [], [], [], []
    every = itertools.product(*(range(len(some)) for some in kind.strategies))
    for combo in itertools.islice(every, 0, None, 3 * len(mesh_shape) - 2):
        (layouts,) = kind.layouts(Option(combo))
        found = count_traffic(kind.extracts[0].graph, layouts, mesh_shape)
        counted.append(sum(found.sent_bytes))
        collectives.append(sum(found.collectives))
        there = compiled(kind, Option(combo), mesh)
        sent.append(there[0])
        tensors.append(there[1])
    assert np.corrcoef(counted, sent)[0, 1] > 0.95
    assert np.median(np.abs(np.array(counted) / sent - 1)) < 0.06
    assert np.corrcoef(collectives, tensors)[0, 1] > 0.6  # some exchanges are compiled to several
