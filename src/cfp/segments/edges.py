"""The edge of a set of equations: what enters it and what leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cfp.trace import Graph


def edges(
    graph: Graph, equations: Sequence[int], ignored: Iterable[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns (values read but not made inside, values made inside that others or the user read).
    Readers that are `ignored` do not count."""
    inside = {*equations, *ignored}
    made = {value for e in equations for value in graph.equations[e].outputs}
    read = dict.fromkeys(value for e in equations for value in graph.equations[e].inputs)
    inputs = tuple(v for v in read if v not in made and v not in graph.constants)
    outputs = tuple(
        value
        for e in equations
        for value in graph.equations[e].outputs
        if value in graph.returned or any(reader not in inside for reader in graph.readers[value])
    )
    return inputs, outputs
