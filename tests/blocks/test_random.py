"""Blocks of random programs: every invariant, and Eq. 1 by brute force."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfp.blocks import Block, Blocks, build_blocks
from cfp.trace import Graph, trace
from cfp.trace.evaluate import run_straight
from tests.blocks.check import check_blocks

from . import interpret
from .oracle import made, violations
from .programs import Program, programs

FAST = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
MESHES = st.sampled_from([(2,), (4,), (2, 2)])


def check(graph: Graph, mesh_shape: tuple[int, ...], sequence: bool) -> Blocks:
    """Builds the blocks; raises where they break an invariant or Eq. 1."""
    blocks = build_blocks(graph, mesh_shape, sequence=sequence)
    check_blocks(graph, blocks)
    for block in blocks.blocks:
        for violation in violations(graph, block):
            pytest.fail(violation)
    return blocks


@settings(FAST, max_examples=300)
@given(programs(), MESHES, st.booleans())
def test_forward(program: Program, mesh_shape: tuple[int, ...], sequence: bool) -> None:
    check(trace(program.forward, *program.args()), mesh_shape, sequence)


@settings(FAST, max_examples=150)
@given(programs(longest=7), MESHES, st.booleans())
def test_training(program: Program, mesh_shape: tuple[int, ...], sequence: bool) -> None:
    """The contractions of a backward pass must find their own step of the program."""
    graph = trace(program.train, *program.args())
    blocks = check(graph, mesh_shape, sequence)
    for backward, forward in blocks.matched.items():
        assert scope(graph, backward) == scope(graph, forward)


def scope(graph: Graph, equation: int) -> str:
    """The step of the program that an equation was made by, or made by differentiating."""
    stack = str(graph.equations[equation].origin.source_info.name_stack)
    found = re.findall(r"step\d+", stack)
    return str(found[-1])


@settings(FAST, max_examples=150)
@given(programs(longest=7), MESHES, st.booleans())
def test_loop(program: Program, mesh_shape: tuple[int, ...], sequence: bool) -> None:
    """As the body of a loop, a program has the same blocks."""
    straight = trace(program.forward, *program.args())
    looped = trace(program.scan, *program.args())
    mine = build_blocks(straight, mesh_shape, sequence=sequence)
    theirs = build_blocks(looped, mesh_shape, sequence=sequence)
    check_blocks(looped, theirs)
    assert {block.loop for block in theirs.blocks} == {0}
    assert [outline(straight, b) for b in mine.blocks] == [
        outline(looped, b) for b in theirs.blocks
    ]


def outline(graph: Graph, block: Block) -> list[Any]:
    """A block without the numbers of its equations and values."""
    members = [
        (graph.equations[m].primitive, [block.splits[v] for v in graph.equations[m].outputs])
        for m in block.members
    ]
    seeds = [block.members.index(seed) for seed in block.seeds]
    candidates = [(c.name, c.extent, list(c.seeds.values())) for c in block.candidates]
    return [seeds, candidates, members, block.ended_by]


@settings(FAST, max_examples=25)
@given(programs())
def test_numpy_means_what_jax_means(program: Program) -> None:
    graph = trace(program.forward, *program.args())
    rng = np.random.default_rng(0)
    values = {*graph.inputs, *graph.constants}
    env = {value: made(graph, value, rng) for value in sorted(values)}

    def whole(env: dict[int, Any]) -> dict[int, Any]:
        env = dict(env)
        run_straight(graph.equations, env)
        return env

    options = {"xla_backend_optimization_level": 0}
    real = jax.jit(whole, compiler_options=options)(env)
    interpret.run(graph.equations, env)
    for value, mine in env.items():
        np.testing.assert_allclose(mine, real[value], rtol=1e-3, atol=1e-4)


def test_programs_are_not_trivial() -> None:
    """The generator reaches what the properties are about."""
    seen: Counter[str] = Counter()

    @settings(FAST, max_examples=150)
    @given(programs())
    def look(program: Program) -> None:
        graph = trace(program.forward, *program.args())
        for block in build_blocks(graph, (2,)).blocks:
            kinds = {graph.equations[m].primitive for m in block.members if m not in block.seeds}
            seen["blocks"] += 1
            seen["joined"] += len(block.seeds) > 1
            seen["contract again"] += "dot_general" in kinds
            seen["look up"] += graph.equations[block.seeds[0]].primitive == "gather"
            seen["reshape"] += "reshape" in kinds
            seen["cut"] += any("split at a smaller tensor" in reason for reason in block.ended_by)
            seen["ended"] += bool(block.ended_by)
            partly = [c for c in block.candidates if 0 < len(c.seeds) < len(block.seeds)]
            seen["split in part"] += bool(partly)

    look()
    assert min(seen.values()) >= 5, seen
    assert seen["blocks"] >= 300, seen


@pytest.fixture(scope="module")
def mlp() -> tuple[Graph, Blocks]:
    def forward(w: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
        return jax.nn.softmax((x @ w).reshape(8, 2, 4) * 2, axis=-1) @ v

    shapes = [(8, 8), (4, 4), (8, 8)]
    graph = trace(forward, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes))
    return graph, build_blocks(graph, (2,))


def test_oracle_sees_a_wrong_dim(mlp: tuple[Graph, Blocks]) -> None:
    graph, blocks = mlp
    block = blocks.blocks[0]
    assert not list(violations(graph, block))
    value = max(block.splits)
    rows, *rest = block.splits[value]
    assert rows == 0
    for wrong in (None, 1, 2):
        splits = {**block.splits, value: (wrong, *rest)}
        assert list(violations(graph, replace(block, splits=splits)))


def test_oracle_sees_a_wrong_extent(mlp: tuple[Graph, Blocks]) -> None:
    graph, blocks = mlp
    block = blocks.blocks[0]
    heads = block.candidates[1]
    assert (heads.name, heads.extent) == ("right dim", 2)
    candidates = (block.candidates[0], replace(heads, extent=4), *block.candidates[2:])
    assert list(violations(graph, replace(block, candidates=candidates)))


def test_oracle_sees_a_wrong_seed_dim(mlp: tuple[Graph, Blocks]) -> None:
    graph, blocks = mlp
    block = blocks.blocks[0]
    (seed,) = block.seeds
    for i, dims in ((0, (1, None)), (1, (0, None)), (2, (0, 0)), (2, (None, None))):
        candidate = block.candidates[i]
        wrong = replace(candidate.seeds[seed], operand_dims=dims)
        candidates = list(block.candidates)
        candidates[i] = replace(candidate, seeds={seed: wrong})
        assert list(violations(graph, replace(block, candidates=tuple(candidates)))), (i, dims)
