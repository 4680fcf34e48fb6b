"""Which blocks may split their streams, and by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cfp.blocks import Block, Blocks, build_blocks
from cfp.blocks.operands import OPERANDS
from cfp.trace import Graph, trace
from tests.blocks.check import check_blocks
from tests.profile.cases import model

B, S, D, F = 8, 6, 16, 32
Loss = Callable[[Any, Any], Any]


def built(loss: Loss, mesh: tuple[int, ...] = (2,), rows: tuple[int, ...] = (B, S)) -> Blocks:
    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    shapes = {"in": (D, D), "up": (D, F), "down": (F, D), "out": (D, D)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    graph = trace(step, params, jax.ShapeDtypeStruct((*rows, D), jnp.float32))
    blocks = build_blocks(graph, mesh)
    check_blocks(graph, blocks)
    return blocks


def twins(blocks: Blocks) -> list[bool]:
    return [any(c.stream_of is not None for c in block.candidates) for block in blocks.blocks]


def residual(p: Any, x: Any) -> Any:
    hidden = x @ p["in"]
    hidden = hidden + jnp.tanh(hidden @ p["up"]) @ p["down"]
    return ((hidden @ p["out"]) ** 2).mean()


def test_a_residual_add_makes_a_stream() -> None:
    """The sums that are added, and those that the stream begins with; not what goes straight into
    the next product, nor what nothing reads."""
    blocks = built(residual)
    assert twins(blocks) == [True, False, True, False]
    down = blocks.blocks[2]
    assert [c.name for c in down.candidates] == [
        "batch",
        "output features",
        "input features",
        "input features (split stream)",
    ]
    assert [rows.extent for rows in down.rows] == [B, S]
    assert down.strategies((2,)) == ((0,), (1,), (2,))
    assert down.stream_strategies((2,)) == ((3,),)


def test_without_an_add_there_is_none() -> None:
    def plain(p: Any, x: Any) -> Any:
        return ((jnp.tanh(x @ p["in"]) @ p["up"]) ** 2).mean()

    def last(p: Any, x: Any) -> Any:  # nothing reads the sum but the loss
        hidden = x @ p["in"]
        return ((hidden + jnp.tanh(hidden @ p["up"]) @ p["down"]) ** 2).mean()

    assert twins(built(plain)) == [False, False]
    assert twins(built(last)) == [True, False, False]


def test_rows_must_divide() -> None:
    assert twins(built(residual, (4,), (6, 10))) == [False] * 4
    assert [rows.extent for rows in built(residual, (4,), (6, 8)).blocks[2].rows] == [8]


@pytest.mark.parametrize(
    ("mesh", "rows", "strategy", "split"),
    [
        ((2,), (8, 6), (3,), (0,)),
        ((2, 2), (8, 6), (0, 3), (None, 1)),  # the batch is taken
        ((2, 2), (8, 6), (3, 0), (1, None)),
        ((2, 2), (8, 6), (3, 3), (0, 1)),
        ((2, 4), (8, 6), (0, 3), (None, 0)),  # 6 positions do not divide by 4: 8 examples by 8 do
        ((4, 2), (8, 5), (3, 0), None),  # gathered along the first axis alone, out of order
        ((2, 4), (4, 6), (0, 3), None),
        ((2, 2), (8, 6), (1, 2), (None, None)),
    ],
)
def test_which_rows_an_axis_splits(
    mesh: tuple[int, ...],
    rows: tuple[int, ...],
    strategy: tuple[int | None, ...],
    split: tuple[int | None, ...] | None,
) -> None:
    down = built(residual, mesh, rows).blocks[2]
    assert down.split_rows(strategy, mesh) == split
    assert (strategy in down.stream_strategies(mesh)) == (split is not None and 3 in strategy)


@pytest.mark.parametrize("name", ["gpt", "bert", "moe", "llama"])
def test_rows_are_kept_by_every_operation(name: str) -> None:
    """Followed in the other direction: each operand of an operation that the block made splits in
    the rows that the result splits in."""
    analysis = model(name)
    found = [block for block in analysis.blocks if block.rows]
    assert found
    for block in found:
        for rows in block.rows:
            assert rows.dims.keys() == block.splits.keys()
            check_rows(analysis.graph, block, rows.dims)


def check_rows(graph: Graph, block: Block, dims: Any) -> None:
    for member in block.members:
        equation = graph.equations[member]
        mapping = equation.op.map
        assert mapping is not None
        for result, value in enumerate(equation.outputs):
            factors = mapping.results[result][dims[value]]
            for operand, source in enumerate(equation.inputs):
                if source in dims:
                    assert mapping.operands[operand][dims[source]][0] == factors[0]
            if member in block.seeds:
                assert not set(factors) & set(mapping.reduced)
                assert equation.primitive in OPERANDS


def test_a_sequence_is_split_only_where_the_batch_cannot_be() -> None:
    def strategies(batch: int, mesh: tuple[int, ...]) -> list[list[str]]:
        def step(w: Any, x: Any) -> Any:
            return w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

        shapes = (D, F), (batch, S, D)
        graph = trace(step, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
        (block,) = build_blocks(graph, mesh, sequence=True).blocks
        names = [candidate.name for candidate in block.candidates]
        return [
            [names[i] for i in s if i is not None and names[i] in ("batch", "sequence")]
            for s in block.strategies(mesh)
        ]

    assert [s for s in strategies(3, (2,)) if s] == [["sequence"]]
    assert [s for s in strategies(4, (2,)) if s] == [["batch"]]
    both = [s for s in strategies(2, (2, 2)) if len(s) == 2]
    assert sorted(both) == [["batch", "sequence"], ["sequence", "batch"]]
