"""The solver against trying every assignment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import ShapeDtypeStruct

from cfp.templates.alpa_ilp import AlpaOptions
from cfp.templates.alpa_ilp.batch import batch_dims
from cfp.templates.alpa_ilp.build import build
from cfp.templates.alpa_ilp.problem import price
from cfp.templates.alpa_ilp.solve import make_cluster, solve_problem
from cfp.trace import trace

from .steps import floats


def random_function(seed: int) -> tuple[Callable[..., Any], list[ShapeDtypeStruct]]:
    """Two or three dots with elementwise operations, reductions and reshapes between them."""
    rng = np.random.default_rng(seed)
    size, dots = int(rng.choice([4, 8])), int(rng.integers(2, 4))
    ops = [int(op) for op in rng.integers(0, 5, dots)]

    def function(x: Any, *weights: Any) -> Any:
        first = x
        for op, w in zip(ops, weights, strict=True):
            y = x @ w
            if op == 0:
                y = jax.nn.relu(y) + first
            elif op == 1:
                y = y - y.mean(-1, keepdims=True)
            elif op == 2:
                y = y.reshape(-1, 2, size).transpose(1, 0, 2).reshape(y.shape)
            elif op == 3:
                y = y + x @ w.T
            else:
                y = (y.T * w.sum(0)[:, None]).T
            x = y
        return x, x.sum(0)

    rows = int(rng.choice([4, 8, 16]))
    return function, [floats(rows, size), *(floats(size, size) for _ in ops)]


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)])
@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_the_cheapest_of_all(mesh: tuple[int, ...], seed: int) -> None:
    function, args = random_function(seed)
    graph = trace(function, *args)
    parameters = frozenset(graph.inputs[1:])
    for options in (AlpaOptions(), AlpaOptions(free_batch=True, allow_mixed_mesh_shape=True)):
        cluster = make_cluster(mesh, options)
        problem = build(graph, cluster, options, batch_dims(graph, parameters), {}).problem
        counts = [len(own) for own in problem.own]
        if math.prod(counts) > 3e4:
            continue
        ways, answer = solve_problem(problem, 30.0)
        every = itertools.product(*(range(count) for count in counts))
        assert answer.optimal
        assert price(problem, ways) == pytest.approx(min(price(problem, w) for w in every))


def test_random_functions_are_small_enough_to_try() -> None:
    tried = 0
    for seed in range(8):
        function, args = random_function(seed)
        graph = trace(function, *args)
        for mesh in ((4,), (2, 2)):
            cluster = make_cluster(mesh, AlpaOptions())
            problem = build(graph, cluster, AlpaOptions(), {}, {}).problem
            tried += math.prod(len(own) for own in problem.own) <= 3e4
    assert tried >= 8
