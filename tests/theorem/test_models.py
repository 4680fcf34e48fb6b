"""On the built-in models the blocks lose nothing: both optima are equal, exactly.

Priced by activations alone, data parallelism is nearly free, and both spaces find it. Priced with
the gradients of the weights the best plan mixes splits, and the equality says more. It needs the
reading `deliver` (a contracted split may deliver into another candidate's dims, a reduce-scatter);
read literally (members whole after a contracted split) every model has a gap.
"""

import functools

import pytest
from bench.theorem.probe import solve_gap
from bench.theorem.spaces import Rules, Silent, build_problem

from cfp.blocks import build_blocks
from cfp.models import config, make_step
from cfp.trace import trace

LAYERS = {"bert": 1, "gpt": 1, "llama": 1, "moe": 2}


@functools.cache
def graph_of(name):
    step, args = make_step(config(name, "tiny", layers=LAYERS[name]))
    return trace(step, *args)


def gap_of(name, parts, rules):
    graph = graph_of(name)
    return solve_gap(build_problem(graph, build_blocks(graph, (parts,)), parts, rules))


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_no_gap_in_activations(name, parts):
    """The blocks are read in the strictest way; the others only allow more."""
    assert gap_of(name, parts, Rules(silent=Silent.WHOLE)).units == 0


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_no_gap_with_weights(name, parts):
    rules = Rules(weights=True, silent=Silent.DELIVER)
    found = gap_of(name, parts, rules)
    assert found.units == 0
    assert found.operators.units > 1000 * parts  # not the trivial plan


@pytest.mark.parametrize("name", ["bert", "gpt", "llama"])
def test_a_contracted_split_must_be_able_to_deliver_a_split(name):
    """What `splits` says literally (None: whole) costs something."""
    literal = gap_of(name, 2, Rules(weights=True, silent=Silent.WHOLE))
    assert literal.units > 0
