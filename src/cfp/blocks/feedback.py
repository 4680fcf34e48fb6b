"""Which results of a step are the next step's arguments: training state that is fed back.

A part of the result's pytree is matched with a part of the arguments of the same structure, shapes
and dtypes; a lone array only with a parameter that the update rewrites.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cfp.trace import Graph, Role

TRAINS_NOTHING = (
    "No result of the step replaces one of its arguments, so it trains nothing: return the new "
    "parameters, of the same structure as the argument they replace."
)


def find_feedback(graph: Graph, parameters: frozenset[int]) -> dict[int, int]:
    """Returns a dict: position of a result -> position of the argument it replaces."""
    parts: dict[Any, list[int]] = {}  # structure and leaves -> where such parts start
    for start, tree in _parts(graph.in_tree):
        key = _key(graph, graph.inputs, start, tree)
        parts.setdefault(key, []).append(start)
    feedback: dict[int, int] = {}
    taken: set[int] = set()

    def visit(start: int, tree: Any) -> None:
        count = tree.num_leaves
        if not count:
            return
        lone = not tree.children() and count == 1
        if not lone or _rewritten(graph, graph.outputs[start]):
            for source in parts.get(_key(graph, graph.outputs, start, tree), ()):
                free = taken.isdisjoint(range(source, source + count))
                if free and (not lone or graph.inputs[source] in parameters):
                    taken.update(range(source, source + count))
                    feedback.update({start + i: source + i for i in range(count)})
                    return
        for child in tree.children():
            visit(start, child)
            start += child.num_leaves

    visit(0, graph.out_tree)
    return feedback


def _parts(tree: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
    yield start, tree
    for child in tree.children():
        yield from _parts(child, start)
        start += child.num_leaves


def _key(graph: Graph, values: tuple[int, ...], start: int, tree: Any) -> Any:
    leaves = values[start : start + tree.num_leaves]
    return tree, tuple((graph.values[v].shape, str(graph.values[v].dtype)) for v in leaves)


def _rewritten(graph: Graph, value: int) -> bool:
    producer = graph.values[value].producer
    return producer is not None and graph.equations[producer].role is Role.UPDATE
