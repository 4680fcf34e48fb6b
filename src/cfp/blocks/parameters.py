"""Which arguments are parameters: read by the forward pass and rewritten by the update.

A step without an update counts the arguments whose gradients it returns; one without gradients
counts every floating-point argument.
"""

from __future__ import annotations

from cfp.trace import Graph, Role


def find_parameters(graph: Graph) -> frozenset[int]:
    def readers(value: int, role: Role) -> bool:
        return any(graph.equations[reader].role is role for reader in graph.readers[value])

    floating = [v for v in graph.inputs if is_floating(graph, v) and graph.values[v].shape]
    forward = [v for v in floating if readers(v, Role.FORWARD) or readers(v, Role.BACKWARD)]
    roles = {equation.role for equation in graph.equations}
    if Role.UPDATE in roles:
        return frozenset(v for v in forward if readers(v, Role.UPDATE))
    if Role.BACKWARD in roles:
        returned = {
            (graph.values[v].shape, graph.values[v].dtype)
            for v in graph.outputs
            if (producer := graph.values[v].producer) is not None
            and graph.equations[producer].role is Role.BACKWARD
        }
        return frozenset(
            v for v in forward if (graph.values[v].shape, graph.values[v].dtype) in returned
        )
    return frozenset(forward)


def is_floating(graph: Graph, value: int) -> bool:
    return "float" in str(graph.values[value].dtype)
