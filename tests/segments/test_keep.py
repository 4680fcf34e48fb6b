"""What is computed again is what was computed: the same bits, from no more than the level keeps."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfp import analyze
from cfp.analysis import Analysis
from cfp.blocks.build import is_contraction
from cfp.layouts import Constrain, Layouts
from cfp.models import config, make_step
from cfp.profile.programs.find_kinds import find_kinds
from cfp.segments.keep import Keep, held_values, recomputation
from cfp.trace import Graph, Role
from cfp.trace.evaluate import rebuild
from cfp.trace.recomputation import Recomputation, redirect
from tests.foreign import PLAIN
from tests.profile.cases import CASES, Untouched, kinds, mesh
from tests.segments.test_cut import _bits

STEPS: dict[str, Any] = {  # `tests/plan/test_verify_sample.py` has more, on meshes
    "gpt_scan": lambda: make_step(config("gpt", scan=True)),
    "llama_checkpoint": lambda: make_step(config("llama", layers=1, checkpoint=True)),
    "accumulate": PLAIN["accumulate"],
    "rnn": PLAIN["rnn"],
}


def randomly(analysis: Analysis, seed: int) -> list[Recomputation]:
    """What segments of a step compute again, a random level for each."""
    random, found = Random(seed), []
    for kind in find_kinds(analysis):
        levels = list(kind.levels.values())
        for place in kind.places if levels else ():
            found.append(random.choice(levels).at(place.equations[0]))
    return found


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_computes_again_gives_exactly_the_step(name: str) -> None:
    step, args = STEPS[name]()
    analysis = analyze(step, *args, mesh_shape=(1,))
    graph = analysis.graph
    again = randomly(analysis, seed=len(name))
    assert any(one.equations for one in again)
    touch = Constrain(mesh((1,)), Layouts((), (), {}, {}))

    def run(some: list[Recomputation]) -> Any:
        return jax.jit(lambda *flat: rebuild(graph, flat, touch, again=some))

    flat = jax.tree.leaves(args)
    pairs = zip(run(again)(*flat), run([])(*flat), graph.output_paths, strict=True)
    for found, expected, path in pairs:
        if found.dtype == jnp.float32:  # what is computed again may be fused with something else
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6, err_msg=path)
        else:
            np.testing.assert_array_equal(_bits(found), _bits(expected), err_msg=path)


@pytest.mark.parametrize("name", CASES)
def test_a_level_keeps_what_it_says(name: str) -> None:
    for kind in kinds(CASES[name]()):
        extract = kind.extracts[0]
        graph, seeds = extract.graph, {s for block in extract.blocks.blocks for s in block.seeds}
        made = {v: e for e in graph.role(Role.FORWARD) for v in e.outputs}
        before = held_values(graph, [])
        for keep, one in kind.levels.items():
            own = [made[v] for v in held_values(graph, [one]) if v in made]
            if keep is Keep.INPUTS:
                assert not own
            elif keep is Keep.CONTRACTIONS:
                assert all(is_contraction(equation, seeds) for equation in own)
            else:
                assert not one.equations
                assert len(own) > sum(v in made for v in before)
            assert all(graph.equations[e].role is Role.FORWARD for e in one.equations)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_what_is_computed_again_is_in_the_program(name: str) -> None:
    """The products of the jaxpr tell: there are as many more as run again, and fewer where the
    step's own recomputation is not read any more."""
    for kind in kinds(CASES[name]()):
        graph = kind.extracts[0].graph
        for one in kind.levels.values():
            more = [e for e in one.equations if graph.equations[e].primitive == "dot_general"]
            live = redirect(graph, [one]).live
            assert live is not None
            idle = [e for e in graph.equations if e.index not in live]
            less = sum(equation.primitive == "dot_general" for equation in idle)
            assert products(graph, [one]) == products(graph, []) + len(more) - less


def products(graph: Graph, again: list[Recomputation]) -> int:
    values = [graph.values[value] for value in graph.inputs]
    inputs = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    made = jax.make_jaxpr(lambda *x: rebuild(graph, x, Untouched(), again=again))(*inputs)
    return str(made).count("dot_general[")


def test_of_a_product_its_input_is_kept() -> None:
    """In tanh(x @ a) @ b the tanh runs again, or all of it."""

    def step(a: Any, b: Any, x: Any) -> Any:
        return jax.grad(lambda a, b: (jnp.tanh(x @ a) @ b).sum(), (0, 1))(a, b)

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 8), (8, 4), (2, 4))]
    analysis = analyze(step, *shapes, mesh_shape=(2,))
    graph, blocks = analysis.graph, analysis.grouping
    assert recomputation(graph, blocks, Keep.AS_WRITTEN) is None
    assert recomputation(graph, blocks, Keep.ALL) is None

    def again(keep: Keep) -> list[str]:
        found = recomputation(graph, blocks, keep)
        assert found is not None
        return [graph.equations[e].primitive for e in found.equations]

    assert "dot_general" not in again(Keep.CONTRACTIONS)
    assert "tanh" in again(Keep.CONTRACTIONS)
    assert again(Keep.INPUTS)[:2] == ["dot_general", "tanh"]


def test_keys_are_kept_so_draws_are_repeated() -> None:
    def step(w: Any, x: Any, key: Any) -> Any:
        def loss(w: Any) -> Any:
            h = x @ w
            return ((h * jax.random.bernoulli(key, 0.5, h.shape)) ** 2).sum()

        return jax.grad(loss)(w)

    args = (jnp.ones((4, 8)), jnp.ones((2, 4)), jax.random.key(3))
    analysis = analyze(step, *args, mesh_shape=(1,))
    graph = analysis.graph
    one = recomputation(analysis.graph, analysis.grouping, Keep.INPUTS)
    assert one is not None
    assert "random_bits" in {graph.equations[e].primitive for e in one.equations}
    touch = Constrain(mesh((1,)), Layouts((), (), {}, {}))
    (found,) = jax.jit(lambda *x: rebuild(graph, x, touch, again=[one]))(*args)
    np.testing.assert_array_equal(found, step(*args))
