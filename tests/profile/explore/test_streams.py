"""Split streams: tried next to the fastest option that has some, if it is near the best; with more
where that gains or where memory counts; and not at all where an option has none."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import cfp
from cfp.profile.explore.streams import NEAR, SOME, split_streams
from cfp.profile.programs.kinds import Option
from tests.profile.cases import kinds, shape
from tests.profile.fake_runner import Clock, FakeRunner, clock
from tests.profile.steps import measured

__all__ = ["clock"]
BEST = ("batch", "output features", "input features", "batch")
STREAM = "batch, output features, input features (split stream), batch"


@functools.cache
def residual(mesh_shape: tuple[int, ...] = (4,)) -> cfp.Analysis:
    """A product, a residual layer of two and another product: one segment of four blocks, the third
    of which adds its sums to the stream that begins with the first."""

    def loss(params: Any, x: Any) -> Any:
        hidden = x @ params["in"]
        hidden = hidden + jnp.tanh(hidden @ params["up"]) @ params["down"]
        return jnp.mean(hidden**2) + jnp.mean((hidden @ params["out"]) ** 2)

    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    params = {"in": shape(16, 16), "up": shape(16, 32), "down": shape(32, 16), "out": shape(16, 8)}
    return cfp.analyze(step, params, shape(8, 4, 16), mesh_shape=mesh_shape)


def times_s(best: Sequence[str], **others: float) -> dict[str, float]:
    """Seconds: 2 for the best option, and half a second more for every block that is split
    otherwise."""
    (kind,) = kinds(residual())
    found = {"idle": 0.1, "segment 0": 9.0}
    for combo in itertools.product(*(range(len(choices)) for choices in kind.strategies)):
        name = kind.show(Option(combo))
        wrong = sum(a != b for a, b in zip(name.split(", "), best, strict=True))
        found[f"segment 0: {name}"] = 2.0 + 0.5 * wrong
    return {**found, **{f"segment 0: {name}": time_s for name, time_s in others.items()}}


def streams(times_s: dict[str, float], clock: Clock, folder: Path, **scope: Any) -> list[str]:
    """The options with split streams that were measured."""
    profile = measured(
        FakeRunner(clock, times_s), folder, analysis=residual(), exhaustive=False, **scope
    )
    (segment,) = profile.segments
    assert 81 == segment.kind.space > segment.ways  # those with split streams are not among them
    return [segment.kind.show(o) for o in segment.costs if segment.kind.has_streams(o)]


def test_of_the_fastest_alone_if_it_gains_nothing(clock: Clock, tmp_path: Path) -> None:
    assert streams(times_s(BEST), clock, tmp_path) == [STREAM]


def test_of_more_if_it_gains(clock: Clock, tmp_path: Path) -> None:
    found = streams(times_s(BEST, **{STREAM: 1.9}), clock, tmp_path)
    assert found[0] == STREAM
    assert 1 < len(found) <= SOME


def test_not_where_the_fastest_has_none_and_others_are_far(clock: Clock, tmp_path: Path) -> None:
    assert NEAR < 2.5 / 2
    assert streams(times_s(("batch",) * 4), clock, tmp_path) == []


def test_of_some_with_their_training_state_where_memory_counts(
    clock: Clock, tmp_path: Path
) -> None:
    found = streams(times_s(("batch",) * 4), clock, tmp_path, memory_limit_bytes=1.0)
    plain = [name for name in found if "(zero1)" not in name and "(fsdp)" not in name]
    assert 1 < len(plain) <= SOME
    assert 1 <= len(found) - len(plain) <= 2


@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)])
def test_all_blocks_of_a_segment_split_their_streams_together(mesh_shape: tuple[int, ...]) -> None:
    (kind,) = kinds(residual(mesh_shape))
    axes = len(mesh_shape)
    summed = (2,) * axes
    combo = tuple(choices.index(summed) for choices in kind.strategies)
    found = [kind.chosen(option) for option in split_streams(kind, Option(combo))]
    assert found[0] == ((3,) * axes, summed, (3,) * axes, summed)
    assert len(found) == len({*found}) == 2**axes - 1  # along both axes, and along each
    batch = tuple(choices.index((0,) * axes) for choices in kind.strategies)
    assert split_streams(kind, Option(batch)) == []
