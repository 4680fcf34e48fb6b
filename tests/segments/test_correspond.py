"""Every equation of an occurrence is found in its kind, and none that is not there."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cfp.analysis import Analysis, analyze
from cfp.segments.correspond import Correspondence, correspond
from cfp.segments.program import Cutter
from cfp.trace import Graph
from tests.profile.cases import CASES, foreign, model


def correspondences(analysis: Analysis) -> tuple[Cutter, tuple[Correspondence, ...]]:
    cutter = Cutter(analysis.graph, analysis.grouping, analysis.segmentation)
    return cutter, correspond(analysis.graph, analysis.grouping, analysis.segmentation, cutter)


def check_correspondence(graph: Graph, found: Correspondence) -> None:
    """Raises ValueError unless pairs do the same, to one another, and no equation is in two."""
    if len(set(found.equations.values())) < len(found.equations):
        raise ValueError("Two equations have one counterpart.")
    for one, other in found.equations.items():
        left, right = graph.equations[one], graph.equations[other]
        if left.op is not right.op:
            raise ValueError(f"Equation {one} does something else than {other}.")
        if any(found.values.get(a) != b for a, b in zip(left.outputs, right.outputs, strict=True)):
            raise ValueError(f"The results of equation {one} are not those of {other}.")


@pytest.mark.parametrize("name", [*CASES, "clip", "rnn"])
def test_pairs_do_the_same_and_lead_to_pairs(name: str) -> None:
    analysis = CASES[name]() if name in CASES else foreign(name)
    graph = analysis.graph
    _, found = correspondences(analysis)
    for one in found:
        check_correspondence(graph, one)
        for value, counterpart in one.values.items():
            ours, theirs = graph.values[value], graph.values[counterpart]
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            if ours.producer in one.equations:
                assert one.equations[ours.producer] == theirs.producer


@pytest.mark.parametrize("name", ["gpt", "llama", "clip", "encoder_decoder"])
def test_nothing_of_the_kind_is_left_over(name: str) -> None:
    analysis = model(name) if name in ("gpt", "llama") else foreign(name)
    cutter, found = correspondences(analysis)
    repeated = 0
    for segment, one in zip(analysis.segments, found, strict=True):
        kind = analysis.distinct_segments[segment.kind]
        mine = {e for program in cutter.programs(kind.representative) for e in program.equations}
        assert mine <= one.equations.keys()
        repeated += segment.index != kind.representative
    assert repeated


def test_what_only_the_first_layer_has_is_no_part_of_its_kind() -> None:
    """BERT drops out its embedding, which only the first layer reads so."""
    analysis = model("bert")
    cutter, found = correspondences(analysis)
    (first, _) = [
        s for s in analysis.segments if len(analysis.distinct_segments[s.kind].occurrences) > 1
    ]
    own = {e for program in cutter.programs(first.index) for e in program.equations}
    extra = own - set(found[first.index].equations.values())
    assert "random_bits" in {analysis.graph.equations[e].primitive for e in extra}
    assert len(extra) < 0.1 * len(own)


def test_tensors_of_one_shape_are_told_apart_by_what_is_done_to_them() -> None:
    """All weights are of one shape, and every other layer uses its two the other way round, so that
    it takes them in, in another order."""
    first = ["a", "b", "a", "b", "a"]

    def layer(x: Any, weights: Any, name: str) -> Any:
        second = "b" if name == "a" else "a"
        return jnp.tanh(x @ weights[name]) @ weights[second].T + x

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for weights, name in zip(params, first, strict=True):
                h = layer(h, weights, name)
            return h.sum()

        return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))

    weight = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    params = [{"a": weight, "b": weight}] * len(first)
    analysis = analyze(step, params, weight, mesh_shape=(2,))
    graph = analysis.graph
    _, found = correspondences(analysis)
    paths = {graph.inputs[i]: path for i, path in enumerate(graph.input_paths)}
    swapped = 0
    for one in found:
        for value, counterpart in one.values.items():
            path, other = paths.get(value, ""), paths.get(counterpart, "")
            if "params" in path and "params" in other:
                (mine, name), (its, its_name) = (
                    re.findall(r"\[(\d+)\]\['(\w)'\]", p)[0] for p in (path, other)
                )
                assert (name == first[int(mine)]) == (its_name == first[int(its)])
                swapped += name != its_name
    assert swapped >= 2
