"""Layouts of whole steps: consistent at every contraction, on random programs and the models."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfp import models
from cfp.analysis import analyze
from cfp.blocks import Blocks, SplitName, Strategy, build_blocks
from cfp.blocks.feedback import find_feedback
from cfp.layouts import Layouts, carry, propagate
from cfp.trace import Graph, Role, trace
from tests.blocks.programs import Program, programs
from tests.layouts.check import check_layouts

FAST = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
MESHES = [(2,), (4,), (2, 2)]


def choose(blocks: Blocks, seed: int) -> list[Strategy]:
    random = np.random.default_rng(seed)
    shape = blocks.mesh_shape
    options = [(*b.strategies(shape), *b.stream_strategies(shape)) for b in blocks.blocks]
    return [each[random.integers(len(each))] for each in options]


@settings(FAST, max_examples=60)
@given(programs(longest=7), st.sampled_from(MESHES), st.booleans(), st.integers(0, 99))
def test_random_programs(
    program: Program, mesh_shape: tuple[int, ...], sequence: bool, seed: int
) -> None:
    graph = trace(program.train, *program.args())
    blocks = build_blocks(graph, mesh_shape, sequence=sequence)
    feedback = find_feedback(graph, blocks.parameters)
    layouts = propagate(graph, blocks, choose(blocks, seed), mesh_shape, feedback=feedback)
    check_layouts(graph, blocks, layouts, feedback)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("gpt", {}),
    ("moe", {}),
    ("llama", {}),
    ("gpt", {"scan": True}),
    ("llama", {"scan": True, "checkpoint": True}),
    ("gpt", {"checkpoint": True, "tied": True}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
def test_models(name: str, options: dict[str, Any], mesh_shape: tuple[int, ...]) -> None:
    step, args = models.make_step(models.config(name, layers=2, **options), abstract=True)
    analysis = analyze(step, *args, mesh_shape=mesh_shape)
    graph, blocks = analysis.graph, analysis.grouping
    feedback = find_feedback(graph, blocks.parameters)
    assert len(feedback) == len(jax.tree.leaves(args[0])), "the state goes round whole"
    for seed in range(3):
        layouts = propagate(graph, blocks, choose(blocks, seed), mesh_shape, feedback=feedback)
        check_layouts(graph, blocks, layouts, feedback)
        check_state(graph, layouts)


@pytest.mark.parametrize(
    ("name", "options"), [("moe", {}), ("llama", {"scan": True, "checkpoint": True})]
)
def test_what_is_remembered_of_other_plans_changes_nothing(
    name: str, options: dict[str, Any]
) -> None:
    step, args = models.make_step(models.config(name, layers=2, **options), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(2, 2))
    graph, blocks = analysis.graph, analysis.grouping
    feedback = find_feedback(graph, blocks.parameters)

    def lay_out(seed: int) -> Layouts:
        return propagate(graph, blocks, choose(blocks, seed), (2, 2), feedback=feedback)

    together = [lay_out(seed) for seed in range(4)]
    for seed, found in enumerate(together):
        carry._memory.cache_clear()
        assert lay_out(seed) == found


def check_state(graph: Graph, layouts: Layouts) -> None:
    """Optimizer state lies as its parameter."""
    by_path = dict(zip(graph.input_paths, layouts.inputs, strict=True))
    followers = 0
    for path, layout in by_path.items():
        for state in (".mu", ".nu"):
            if state in path:
                tail = path.split(state)[1]
                assert layout == by_path[f"state.params{tail}"], path
                followers += 1
    assert followers


def test_every_backward_contraction_is_told() -> None:
    step, args = models.make_step(models.config("gpt", layers=1), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(2,))
    graph, blocks = analysis.graph, analysis.grouping
    layouts = propagate(graph, blocks, choose(blocks, 0), (2,))
    for equation in graph.role(Role.BACKWARD):
        if equation.index in blocks.matched:
            assert equation.outputs[0] in layouts.values
            told = [i for i in range(len(equation.inputs)) if (equation.index, i) in layouts.uses]
            assert len(told) >= 2


def chain(strategies: list[str]) -> tuple[Graph, Blocks, Layouts]:
    """Three products in a row, with a gelu between: w[8,8] each, 16 rows."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for w in weights:
                y = jax.nn.gelu(y @ w)
                y = y - y.mean(-1, keepdims=True)  # ends the block
            return (y**2).sum()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = [np.ones((8, 8), np.float32)] * len(strategies)
    graph = trace(step, weights, np.ones((16, 8), np.float32))
    blocks = build_blocks(graph, (2,))
    chosen: list[Strategy] = []
    for block, name in zip(blocks.blocks, strategies, strict=True):
        names = [candidate.split_name for candidate in block.candidates]
        chosen.append((names.index(SplitName(name)),))
    feedback = find_feedback(graph, blocks.parameters)
    return graph, blocks, propagate(graph, blocks, chosen, (2,), feedback=feedback)


def test_partial_sums_go_where_the_next_block_wants_them() -> None:
    graph, blocks, layouts = chain(["input features", "batch"])
    result = graph.equations[blocks.blocks[0].seeds[0]].outputs[0]
    assert layouts.values[result] == (0,)  # a reduce-scatter, not an all-reduce
    graph, blocks, layouts = chain(["input features", "output features"])
    result = graph.equations[blocks.blocks[0].seeds[0]].outputs[0]
    assert layouts.values[result] == (None,)


def test_a_norm_is_brought_into_the_next_layout_before_it_sums() -> None:
    _, blocks, layouts = chain(["output features", "batch"])
    placed = blocks.blocks[1].prologue
    moved = [layout for (e, _), layout in layouts.uses.items() if e in placed]
    assert moved
    assert set(moved) == {(0,)}
    _, blocks, layouts = chain(["batch", "output features"])  # rows pass a norm for nothing
    assert not [key for key in layouts.uses if key[0] in blocks.blocks[1].prologue]


def test_held_arguments_stay() -> None:
    step, args = models.make_step(models.config("gpt", layers=1), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(2,))
    graph, blocks = analysis.graph, analysis.grouping
    position = graph.input_paths.index("state.params['head']")
    for layout in ((0,), (1,), (None,)):
        layouts = propagate(graph, blocks, choose(blocks, 0), (2,), held={position: layout})
        assert layouts.inputs[position] == layout
        state = graph.input_paths.index("state.opt_state[0].mu['head']")
        assert layouts.inputs[state] == layout


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda x: replace(x, inputs=((5,), *x.inputs[1:])), "does not divide into"),
        (lambda x: replace(x, uses=dict.fromkeys(x.uses, (0,))), "splits"),
        (lambda x: replace(x, outputs=((None,),) * len(x.outputs)), "otherwise than its argument"),
    ],
)
def test_the_verifier_can_fail(spoil: Any, reason: str) -> None:
    graph, blocks, layouts = chain(["output features", "input features"])
    feedback = find_feedback(graph, blocks.parameters)
    check_layouts(graph, blocks, layouts, feedback)
    with pytest.raises(ValueError, match=reason):
        check_layouts(graph, blocks, spoil(layouts), feedback)


def test_what_is_drawn_is_not_told() -> None:
    """The compiler is told of all that depends on arguments: told that masks are whole, every
    device would draw them whole."""
    step, args = models.make_step(models.config("gpt", layers=2), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(4,))
    graph, blocks = analysis.graph, analysis.grouping
    chosen: list[Strategy] = [(0,)] * len(blocks.blocks)
    told = propagate(graph, blocks, chosen, (4,))
    drawn = {v for e in graph.equations if e.primitive.startswith("random_") for v in e.outputs}
    assert len(told.values) > 0.3 * len(graph.equations)
    assert drawn
    assert drawn.isdisjoint(told.values)
