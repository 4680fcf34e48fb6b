"""The integer program finds what plain enumeration finds."""

import jax
import jax.numpy as jnp
import pytest
from bench.theorem.graphs import training_step
from bench.theorem.problem import Node, Problem, price
from bench.theorem.solve import enumerate_all, solve
from bench.theorem.spaces import Rules, Silent, build_problem
from bench.theorem.ways import Way, split_ways

from cfp.blocks import build_blocks
from cfp.trace import trace


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def chain(w, x):
    return jnp.tanh(x @ w[0]) @ w[1]


def residual(w, x):
    y = x @ w[0]
    return y @ w[1] + y


def across(w, x):
    return jnp.sum(x @ w[0], axis=0) @ w[1]


def turned(w, x):
    y = x @ w[0]
    return y.reshape(2, 2, 4).transpose(2, 0, 1) @ w[1]


TINY = {
    "chain": (chain, [array(4, 4), array(4, 4)], array(4, 4)),
    "residual": (residual, [array(8, 4), array(4, 4)], array(4, 8)),
    "across": (across, [array(4, 8), array(8, 4)], array(4, 4)),
    "turned": (turned, [array(8, 4), array(2, 4)], array(4, 8)),
}


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_the_program_agrees_with_enumeration(name, weights):
    forward, matrices, x = TINY[name]
    graph = trace(training_step(forward), matrices, x)
    for parts in (2, 4):
        blocks = build_blocks(graph, (parts,))
        for silent in Silent:
            rules = Rules(weights=weights, silent=silent)
            problem = build_problem(graph, blocks, parts, rules)
            for inside in (False, True):
                found, known = solve(problem, blocks=inside), enumerate_all(problem, blocks=inside)
                assert found.units == known.units


def test_the_price_of_a_value_is_paid_once_per_sharding():
    made = Node("made", (), (0,), (Way((), (0,)),))

    def reader(name, sharding):
        return Node(name, (0,), (), (Way((sharding,), ()),))

    def units(*wanted, parts=4):
        nodes = (made, *(reader(str(i), at) for i, at in enumerate(wanted)))
        return price(Problem(nodes, (), {0: 100}, parts), [0] * len(nodes))

    assert units(0) == 0
    assert units(1) == units(1, 1) == 100  # all-to-all: n
    assert units(1, 2) == 200
    assert units(None) == units(None, None) == units(None, 1, 2) == 400  # gathered once: n P
    assert units(1, 2, 3, parts=2) == 200  # a gather is cheaper than three moves


def test_the_ways_of_a_product():
    graph = trace(lambda x, w: x @ w, array(4, 8), array(8, 4))
    (product,) = graph.equations
    found = split_ways(product.op, 4)
    n = 4 * 4 * 4
    assert Way((0, None), (0,)) in found
    assert Way((None, 1), (1,)) in found
    assert Way((1, 0), (None,), partial=True, price=2 * n * 4) in found
    assert Way((1, 0), (0,), partial=True, price=n * 4) in found
    assert Way((1, 0), (1,), partial=True, price=n * 4) in found
    assert len(found) == 5
    assert split_ways(product.op, 3) == []
