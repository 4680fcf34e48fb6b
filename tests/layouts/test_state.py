"""Training state split further than its blocks ask."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cfp.blocks.feedback import find_feedback
from cfp.layouts import Layout, propagate
from cfp.layouts.state import State, propagate_state, split_further, state_arguments
from cfp.trace import Graph, trace
from tests.layouts.check import check_layouts
from tests.profile.cases import foreign, model, two_products


def one(*sizes: int) -> Graph:
    return trace(lambda x: x * 2, jax.ShapeDtypeStruct(sizes, jnp.float32))


@pytest.mark.parametrize(
    ("sizes", "mesh_shape", "layout", "expected"),
    [
        ((4, 16, 8), (4,), (None,), (1,)),  # the largest
        ((4, 18, 8), (4,), (None,), (2,)),  # of those that divide
        ((8, 8), (4,), (None,), (0,)),  # the first of several
        ((9, 7), (4,), (None,), None),
        ((), (4,), (None,), None),
        ((16, 8), (4,), (1,), None),  # no axis is free
        ((8, 8), (2, 2), (0, None), (0, 1)),  # 4 are left in dim 0
        ((32, 8), (2, 2), (0, None), (0, 0)),
        ((8, 6), (2, 2), (None, 0), (1, 0)),
        ((8, 4), (2, 2), (None, 0), (0, 0)),
        ((2, 6, 4), (2, 2), (None, None), (2, 2)),  # both on one dim
        ((2, 2), (2, 2), (None, None), None),
        ((8, 4), (4, 1), (0, None), None),  # an axis of one splits nothing
        ((8, 4), (1, 4), (None, None), (None, 0)),
    ],
)
def test_split_further(
    sizes: tuple[int, ...], mesh_shape: tuple[int, ...], layout: Layout, expected: Layout | None
) -> None:
    graph = one(*sizes)
    assert split_further(graph, graph.inputs[0], layout, mesh_shape) == expected


def test_the_dim_that_a_loop_runs_over_stays() -> None:
    def step(stack: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (x @ w, None), x, stack)[0]

    graph = trace(step, jnp.ones((8, 4, 4)), jnp.ones((4, 4)))
    assert graph.loops
    assert split_further(graph, graph.inputs[0], (None,), (4,)) == (1,)
    assert split_further(graph, graph.inputs[1], (None,), (4,)) == (0,)


def layouts(analysis: Any, combo: tuple[int, ...], state: State) -> Any:
    graph, blocks = analysis.graph, analysis.grouping
    feedback = find_feedback(graph, blocks.parameters)
    shape = blocks.mesh_shape
    strategies = [(*b.strategies(shape), *b.stream_strategies(shape)) for b in blocks.blocks]
    chosen = [each[i % len(each)] for each, i in zip(strategies, itertools.cycle(combo))]
    found = propagate_state(graph, blocks, chosen, state, feedback=feedback)
    check_layouts(graph, blocks, found, feedback)
    if state is State.BLOCK:
        assert found == propagate(graph, blocks, chosen, shape, feedback=feedback)
    return dict(zip(graph.input_paths, found.inputs, strict=True)), found


STEPS: dict[str, Any] = {
    "gpt": lambda: model("gpt"),
    "scan": lambda: model("llama", scan=True, checkpoint=True),
    "2x2": lambda: model("gpt", (2, 2)),
    "two products": two_products,
    "rnn": lambda: foreign("rnn"),
}


@pytest.mark.parametrize("name", STEPS)
def test_states_of_whole_steps(name: str) -> None:
    analysis, combo = STEPS[name](), (2, 0, 1)
    graph, blocks = analysis.graph, analysis.grouping
    block, _ = layouts(analysis, combo, State.BLOCK)
    zero1, _ = layouts(analysis, combo, State.ZERO1)
    fsdp, _ = layouts(analysis, combo, State.FSDP)
    state = {graph.input_paths[i] for i in state_arguments(graph, blocks)}
    parameters = {
        path
        for path, value in zip(graph.input_paths, graph.inputs, strict=True)
        if value in blocks.parameters
    }
    assert state
    assert state.isdisjoint(parameters)
    values = dict(zip(graph.input_paths, graph.inputs, strict=True))
    for path in parameters:
        assert zero1[path] == block[path], "parameters stay"
        further = split_further(graph, values[path], block[path], analysis.mesh_shape)
        assert fsdp[path] == (block[path] if further is None else further)
    for path in state:
        further = split_further(graph, values[path], block[path], analysis.mesh_shape)
        assert zero1[path] == (block[path] if further is None else further)


@pytest.mark.parametrize("combo", [*itertools.product(range(3), repeat=2)], ids=str)
def test_momentum_lies_as_its_parameter(combo: tuple[int, ...]) -> None:
    for state in (State.BLOCK, State.FSDP):
        found, _ = layouts(two_products(), combo, state)
        for name in "ab":
            assert found[f"momentum['{name}']"] == found[f"params['{name}']"], state


def test_held_arguments_stay_held() -> None:
    analysis = two_products()
    graph, blocks = analysis.graph, analysis.grouping
    position = graph.input_paths.index("params['a']")
    strategies = [block.strategies((4,))[0] for block in blocks.blocks]
    for state in State:
        found = propagate_state(graph, blocks, strategies, state, held={position: (None,)})
        assert found.inputs[position] == (None,)


def test_optimizer_state_is_what_only_the_update_reads() -> None:
    analysis = model("gpt")
    graph = analysis.graph
    paths = [graph.input_paths[i] for i in state_arguments(graph, analysis.grouping)]
    assert paths
    assert all(".mu[" in path or ".nu[" in path for path in paths)
    moments = [path for path in graph.input_paths if ".mu[" in path or ".nu[" in path]
    assert sorted(paths) == sorted(moments)
