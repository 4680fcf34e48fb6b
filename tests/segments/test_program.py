"""A segment's programs run on their own, on values that make sense."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfp import analyze
from cfp.models import config, make_step
from cfp.segments import Phase
from cfp.segments.fill import example_inputs
from cfp.segments.program import Cutter
from cfp.trace import Graph, is_key


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt", {}),
        ("llama", {"scan": True, "checkpoint": True}),
        ("moe", {"layers": 4, "scan": True}),
    ],
)
def test_every_distinct_segment_runs_alone(name: str, options: dict[str, int]) -> None:
    step, args = make_step(config(name, **options), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(4,))
    graph = analysis.graph
    for kind in analysis.distinct_segments:
        programs = Cutter(graph, analysis.grouping, analysis.segmentation).programs(
            kind.representative
        )
        assert programs[0].times == analysis.segments[kind.representative].times
        for program in programs:
            inputs = example_inputs(graph, program.inputs)
            run = jax.jit(lambda *x, p=program: p.run(graph, x))
            outputs = run(*inputs)
            moved = run(*example_inputs(graph, program.inputs, seed=1))
            for value, a, b in zip(program.outputs, outputs, moved, strict=True):
                assert a.shape == graph.values[value].shape
                assert a.dtype == graph.values[value].dtype
                # nothing but constants (the -inf of a mask) may be infinite
                fine = ~jnp.isnan(a) & (jnp.isfinite(a) | (a == b))
                assert bool(fine.all()), graph.describe(value)


def test_a_program_is_the_three_parts_of_its_segment() -> None:
    step, args = make_step(config("gpt", layers=3), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(4,))
    (program,) = Cutter(analysis.graph, analysis.grouping, analysis.segmentation).programs(2)
    parts = [
        analysis.segmentation.part(2, p) for p in (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
    ]
    assert all(parts)
    own = {e for part in parts if part for e in part.equations}
    keys = {e for e in own - set(program.equations) if _makes_keys(analysis.graph, e)}
    assert own - keys <= set(program.equations), "all but what derives PRNG keys"
    shared = [analysis.graph.equations[e] for e in set(program.equations) - own]
    arguments = set(analysis.graph.inputs)
    assert all(arguments.isdisjoint(e.inputs) for e in shared), "constants alone"
    shown = program.show(analysis.graph)
    assert "state.params['layers'][1]['qkv']" in shown
    assert "state.params['layers'][2]['qkv']" not in shown


def _makes_keys(graph: Graph, equation: int) -> bool:
    return all(is_key(graph.values[v].dtype) for v in graph.equations[equation].outputs)


def test_a_loop_body_and_its_update_are_told_apart() -> None:
    step, args = make_step(config("gpt", layers=6, scan=True), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(4,))
    body, once = Cutter(analysis.graph, analysis.grouping, analysis.segmentation).programs(1)
    assert (body.times, once.times) == (6, 1)
    stacked = {v for v in body.inputs if analysis.graph.values[v].shape[:1] == (6,)}
    assert not stacked, "an iteration sees no stacked tensor"


def test_keys_are_filled_with_keys() -> None:
    def step(w, x, key):
        return (x @ w) * jax.random.bernoulli(key, 0.5, (4, 4))

    args = (jnp.ones((4, 4)), jnp.ones((4, 4)), jax.random.key(0))
    graph = analyze(step, *args).graph
    filled = example_inputs(graph, graph.inputs)
    assert jax.dtypes.issubdtype(filled[2].dtype, jax.dtypes.prng_key)
    np.testing.assert_array_equal(
        jax.random.key_data(filled[2]), jax.random.key_data(example_inputs(graph, graph.inputs)[2])
    )
