"""Where Theorem 1 fails, as small as we found it.

The proof looks at one operator before a parallelism-preserving subgraph and one after it, and at
the smallest tensor between. Real subgraphs have several ways out and several ways in.
"""

import jax
import jax.numpy as jnp
import pytest
from bench.theorem.graphs import training_step
from bench.theorem.probe import gap, solve_gap
from bench.theorem.spaces import Rules, Silent, build_problem

from cfp.blocks import SplitName, build_blocks
from cfp.trace import trace


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def two_ways_out(w, x):
    y = x @ w[0]
    return jnp.sin(y) @ w[1], jnp.cos(y) @ w[2]


@pytest.mark.parametrize("parts", [2, 4])
def test_two_ways_out(parts):
    """The assumption broken: *one* operator after the subgraph. Refinement mends this one.

    The parallelism-preserving subgraph is {x @ w0, sin, cos}; both results leave it. The best
    plan splits the columns of y, gathers y (n bytes) and computes sin and cos whole, for the two
    products that follow. One split for all means to gather sin(y) and cos(y): 2n, and each
    further way out adds n. No tensor inside is smaller than *an* output of the block, so the
    paper's refinement finds nothing to cut; ours weighs y against all that leaves, together.
    """
    matrices, x = [array(4, 4)] * 3, array(4)
    found = gap(training_step(two_ways_out), (matrices, x), parts, Rules(silent=Silent.DELIVER))
    n = 4 * 4
    assert found.operators.units == n * parts
    assert found.blocks.units == n * parts


def shortcut(w, x):
    return jnp.tanh(x @ w[0]) @ w[1] + x @ w[2]


@pytest.mark.parametrize("parts", [2, 4])
def test_two_first_operators(parts):
    """The assumption broken: the splits of a block are determined by its *first operator*.

    tanh(x @ w0) @ w1 and the projection x @ w2 meet in a sum, so they are siblings in one block.
    With all weights split, the best plan splits w0 by columns, contracts over them, scatters the
    partial sums into columns (n bytes) and has x @ w2 by columns for nothing. One candidate for
    both seeds makes x @ w2 a partial sum too, or gathers the tanh for the columns of w1: 2n.
    """
    args = ([array(16, 16), array(16, 8), array(16, 8)], array(4, 16))
    rules = Rules(weights=True, silent=Silent.DELIVER)
    found = gap(training_step(shortcut), args, parts, rules)
    n = 4 * 8 * 4
    assert found.operators.units == n * parts
    assert found.blocks.units == 2 * n * parts


def absorbed(w, x):
    y = (x @ w[0]).reshape(4, 2, 4)
    return (y @ w[1]) @ w[2]


def test_a_contraction_inside():
    """The assumption broken: the only cost is resharding what passes *through* the subgraph.

    The reshape puts the columns of w0 into a dim of its own, which the products that follow keep:
    all three are one block, and their own columns are no candidates. So w1 and w2 cannot be
    split, and their gradients are paid for; the best plan splits y @ w1 by columns.
    """
    args = ([array(8, 8), array(4, 16), array(16, 4)], array(4, 8))
    found = gap(training_step(absorbed), args, 2, Rules(weights=True, silent=Silent.DELIVER))
    assert found.operators.units == 512
    assert found.blocks.units == 768


def tail(w, x):
    y = x @ w[0]
    return (y * jnp.sum(y * y, axis=-1, keepdims=True)) @ w[1]


@pytest.mark.parametrize("parts", [2, 4])
def test_a_tail_is_no_counterexample(parts):
    """An RMS norm: y leaves the block, and so would y * y if it were part of it.

    y is gathered for the product anyway; its square is computed from that for nothing. Bound to
    the block it would be split by columns, and its sum left partial.
    """
    args = ([array(16, 4), array(4, 16)], array(4, 16))
    rules = Rules(weights=True, silent=Silent.DELIVER)
    assert gap(training_step(tail), args, parts, rules).units == 0


def residual(w, x):
    y = x @ w[0]
    z = (y @ w[1]) @ w[2] + y
    return z @ w[3]


def test_a_second_way_in():
    """The assumption broken: *one* operator before the subgraph.

    With the products split by rows, rows, columns, rows (pinned: the theorem speaks of the best
    plan alone, but planning under other costs or a memory limit meets such plans too), the block
    {(y @ w1) @ w2, + y} reads y in its middle. Splitting all of it by columns moves y there (n)
    and the sum back (n); the best plan moves the product back and adds in rows (n).
    """
    graph = trace(training_step(residual), [array(4, 4)] * 4, array(8, 4))
    blocks = build_blocks(graph, (2,))
    kinds = (SplitName.BATCH, SplitName.BATCH, SplitName.OUTPUT, SplitName.BATCH)
    pins = {
        block.index: [c.split_name for c in block.candidates].index(kind)
        for block, kind in zip(blocks.blocks, kinds, strict=True)
    }
    rules = Rules(silent=Silent.DELIVER, pins=pins)
    found = solve_gap(build_problem(graph, blocks, 2, rules))
    n = 8 * 4 * 4
    gathered = 2 * n  # y @ w1, whole, for the columns of w2
    assert found.operators.units == gathered + n
    assert found.blocks.units == gathered + 2 * n
