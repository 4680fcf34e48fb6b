"""Which arguments are parameters: read by the forward pass and rewritten by the update.

An argument is rewritten where the update makes a result of its shape and type from it. That it is
read there is not enough: what a step logs of its data, outside the loss, is no part of the forward
pass either. A step that rewrites nothing counts the arguments whose gradients it returns; one
without gradients counts every floating-point argument.
"""

from __future__ import annotations

from cfp.trace import Graph, Role


def find_parameters(graph: Graph) -> frozenset[int]:
    """Returns the parameters among the graph's inputs."""
    made = _made_of(graph)
    forward = [
        v
        for v in graph.inputs
        if is_floating(graph, v)
        and graph.values[v].shape
        and any(graph.equations[r].role is not Role.UPDATE for r in graph.readers[v])
    ]
    rewritten = frozenset(v for v in forward if _sort(graph, v) in made.get(v, ()))
    if rewritten:
        return rewritten
    if any(equation.role is Role.BACKWARD for equation in graph.equations):
        returned = {
            _sort(graph, v)
            for v in graph.outputs
            if (producer := graph.values[v].producer) is not None
            and graph.equations[producer].role is not Role.FORWARD
        }
        return frozenset(v for v in forward if _sort(graph, v) in returned)
    return frozenset(forward)


def _made_of(graph: Graph) -> dict[int, frozenset[object]]:
    """Returns a dict: value -> the shapes and types of the results that the update makes of it, for
    the values that it reads."""
    made: dict[int, frozenset[object]] = {}
    returned = {v: frozenset([_sort(graph, v)]) for v in graph.outputs}
    nothing: frozenset[object] = frozenset()
    for equation in reversed([*graph.role(Role.UPDATE)]):
        found = nothing.union(
            *(made.get(v, nothing) | returned.get(v, nothing) for v in equation.outputs)
        )
        for value in equation.inputs:
            made[value] = made.get(value, nothing) | found
    return made


def _sort(graph: Graph, value: int) -> object:
    return graph.values[value].shape, graph.values[value].dtype


def is_floating(graph: Graph, value: int) -> bool:
    return "float" in str(graph.values[value].dtype)
