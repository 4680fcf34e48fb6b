"""A scan over layers inside a scan over micro-batches: a segment is three programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import cfp
from cfp.layouts.state import State
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from tests.layouts.check import check_layouts
from tests.profile.fake_runner import Clock, FakeRunner, clock
from tests.profile.steps import measured

__all__ = ["clock"]
LAYERS, MICRO = 4, 3


def loss(ws: Any, x: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)
    return jnp.mean(x**2)


def step(ws: Any, xs: Any) -> Any:
    start = jnp.zeros_like(ws)
    total, _ = jax.lax.scan(lambda g, x: (g + jax.grad(loss)(ws, x), None), start, xs)
    return ws - 0.1 * total


@pytest.fixture(scope="module")
def analysis() -> cfp.Analysis:
    shape: Any = jax.ShapeDtypeStruct
    ws = shape((LAYERS, 64, 64), jnp.float32)
    return cfp.analyze(step, ws, shape((MICRO, 32, 64), jnp.float32), mesh_shape=(2,))


@pytest.fixture(scope="module")
def kind(analysis: cfp.Analysis) -> Kind:
    (found,) = find_kinds(analysis)
    return found


def test_every_rate_is_a_program(kind: Kind) -> None:
    assert [extract.times for extract in kind.extracts] == [LAYERS * MICRO, MICRO, 1]


@pytest.mark.parametrize("state", State)
def test_stacked_parameters_lie_as_the_innermost_slices(kind: Kind, state: State) -> None:
    for combo in range(len(kind.strategies[0])):
        layouts = kind.layouts(Option((combo,), state))
        for extract, lie in zip(kind.extracts, layouts, strict=True):
            check_layouts(extract.graph, extract.blocks, lie)
        (pairs,) = kind.further
        assert pairs
        for pair in pairs:
            inside, outside = layouts[0].inputs[pair.inside], layouts[2].inputs[pair.outside]
            assert outside == tuple(None if d is None else d + pair.shift for d in inside)


def test_it_is_profiled(clock: Clock, tmp_path: Path, analysis: cfp.Analysis) -> None:
    profile = measured(FakeRunner(clock), tmp_path, analysis=analysis)
    (segment,) = profile.segments
    assert profile.complete
    assert segment.ways == segment.kind.space
