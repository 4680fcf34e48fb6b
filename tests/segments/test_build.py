"""Which runs of blocks are one segment, as in the paper's figure of distinct segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cfp.analysis import Analysis, analyze

INPUT, NARROW, MIDDLE, WIDE, ROWS = 8, 16, 32, 64, 64


def layers(*kinds: tuple[str, Any]) -> Analysis:
    """Layers of five products, the fourth of which adds what the first ("a") or the second ("b")
    computed."""

    def layer(x: Any, w: Any, source: str, activation: Any) -> Any:
        a = activation(x @ w["a"])
        b = activation(a @ w["b"])
        c = activation(b @ w["c"])
        d = activation(c @ w["d"] + {"a": a, "b": b}[source])
        return activation(d @ w["e"])

    def step(params: Any, ends: Any, x: Any) -> Any:
        def loss(params: Any, ends: Any) -> Any:
            hidden = x @ ends["in"]
            for w, kind in zip(params, kinds, strict=True):
                hidden = layer(hidden, w, *kind)
            return jnp.mean((hidden @ ends["out"]) ** 2)

        return jax.grad(loss, argnums=(0, 1))(params, ends)

    def shape(*sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    weights = {
        "a": shape(NARROW, MIDDLE),
        "b": shape(MIDDLE, MIDDLE),
        "c": shape(MIDDLE, WIDE),
        "d": shape(WIDE, MIDDLE),
        "e": shape(MIDDLE, NARROW),
    }
    ends = {"in": shape(INPUT, NARROW), "out": shape(NARROW, INPUT)}
    return analyze(step, [weights] * len(kinds), ends, shape(ROWS, INPUT), mesh_shape=(4,))


def blocks_of(analysis: Analysis, occurrences: Sequence[int]) -> list[tuple[int, ...]]:
    return [analysis.segments[i].blocks for i in occurrences]


def test_what_is_no_contraction_does_not_tell_layers_apart() -> None:
    analysis = layers(("a", jnp.tanh), ("a", jax.nn.relu), ("a", jnp.tanh))
    _, layer, _ = analysis.distinct_segments
    assert blocks_of(analysis, layer.occurrences) == [
        (1, 2, 3, 4, 5),
        (6, 7, 8, 9, 10),
        (11, 12, 13, 14, 15),
    ]


def test_who_reads_an_intermediate_result_does() -> None:
    """The same products; in the last two another result is added. Only parts of a layer that do
    not hold both the result and who adds it are alike in all."""
    analysis = layers(*[("b", jnp.tanh)] * 2, *[("a", jnp.tanh)] * 2)
    assert analysis.distinct_segments
    for kind in analysis.distinct_segments:
        first = {(blocks[0] - 1) // 5 for blocks in blocks_of(analysis, kind.occurrences)}
        (length,) = {len(blocks) for blocks in blocks_of(analysis, kind.occurrences)}
        assert length < 5 or first in ({0, 1}, {2, 3})
    assert [segment.blocks for segment in analysis.segments[1:3]] == [(1, 2), (3, 4, 5)]
