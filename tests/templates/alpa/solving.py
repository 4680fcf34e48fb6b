"""Solving a step, what to read off the answer, and what Alpa says collectives cost."""

from __future__ import annotations

import math
from typing import Any

import jax

from cfp.layouts import fits
from cfp.templates.alpa_ilp import AlpaOptions, AlpaSolution, solve_alpa
from cfp.trace import Graph, trace

from .steps import Step


def solve(step: Step, mesh: tuple[int, ...], **options: Any) -> tuple[Graph, AlpaSolution]:
    function, args = step
    graph = trace(function, *args)
    state, weights = len(jax.tree.leaves(args[0])), len(jax.tree.leaves(args[0][0]))
    solution = solve_alpa(
        graph,
        mesh,
        parameters=frozenset(graph.inputs[:weights]),
        feedback={i: i for i in range(state)},
        options=AlpaOptions(**options),
    )
    assert solution.status == "optimal"
    assert not solution.relented
    check(graph, mesh, solution)
    return graph, solution


def check(graph: Graph, mesh: tuple[int, ...], solution: AlpaSolution) -> None:
    """Every layout fits its tensor, and there is one for every input and output."""
    found = solution.layouts
    placed = [
        *zip(graph.inputs, found.inputs, strict=True),
        *zip(graph.outputs, found.outputs, strict=True),
        *found.values.items(),
        *((graph.equations[e].inputs[k], layout) for (e, k), layout in found.uses.items()),
    ]
    for value, layout in placed:
        assert len(layout) == len(mesh)
        assert fits(layout, graph.values[value].shape, mesh), graph.describe(value)


def layouts(graph: Graph, solution: AlpaSolution, *names: str) -> list[Any]:
    """Returns the layouts of the parameters whose path holds one of the names, in order."""
    return [
        layout
        for path, layout in zip(graph.input_paths, solution.layouts.inputs, strict=True)
        if path.startswith("state[0]") and any(name in path for name in names)
    ]


def kinds(solution: AlpaSolution) -> set[str]:
    return {c.kind for c in solution.communications}


def activations(graph: Graph, solution: AlpaSolution) -> int:
    """Collectives of what a dot still reads: not of gradients."""
    read: set[int] = set()
    for equation in reversed(graph.equations):
        if equation.primitive == "dot_general" or not read.isdisjoint(equation.outputs):
            read.update(equation.inputs)
    return sum(c.times for c in solution.communications if c.value in read)


def all_reduce(n: int, size_bytes: float, alpha: float = 1, beta: float = 1) -> float:
    return alpha + beta * 2 * (n - 1) / n * size_bytes + 0.01


def all_to_all(n: int, size_bytes: float) -> float:
    return 1 + (n - 1) / n / n * size_bytes * n / 2 + 0.001


def data_parallel_cost(step: Step, n: int) -> float:
    """Alpa's assert_data_parallel_cost: every gradient once, a penalty per replicated tensor."""
    params, moments = (jax.tree.leaves(tree) for tree in step[1][0])
    penalty = int(all_reduce(n, 1) + all_reduce(1, 1))
    gradients = sum(all_reduce(n, math.prod(x.shape) * 4) for x in params)
    return gradients + penalty * (len(params) + len(moments))


def close(cost: float, expected: float, within: float = 0.01) -> bool:
    return abs(cost / expected - 1) <= within


def whole_moments(graph: Graph, solution: AlpaSolution) -> list[str]:
    """Optimizer states that are not split at all, scalars apart."""
    return [
        path
        for path, value, layout in zip(
            graph.input_paths, graph.inputs, solution.layouts.inputs, strict=True
        )
        if path.startswith("state[1]") and graph.values[value].shape and set(layout) == {None}
    ]


# each in turn, the weights of a stack: columns, rows, columns, ...
def column(axis: int, axes: int = 2) -> tuple[int | None, ...]:
    return tuple(1 if a == axis else None for a in range(axes))


def row(axis: int, axes: int = 2) -> tuple[int | None, ...]:
    return tuple(0 if a == axis else None for a in range(axes))
