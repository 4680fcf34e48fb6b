"""Nodes with one option left are no choice: they go into the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cfp.search.part import Part
from cfp.search.problem import Array, Node, Problem


def contract(part: Part, order: Sequence[int]) -> tuple[Part, tuple[int, ...]]:
    """Edges to what is decided are times of the other end; the rest of it is added to the first
    node that is not."""
    nodes, edges = part.problem.nodes, part.problem.edges
    free = [i for i, node in enumerate(nodes) if len(node.times_s) > 1] or [0]
    if len(free) == len(nodes):
        return part, tuple(order)
    number = {i: at for at, i in enumerate(free)}
    decided = [node for i, node in enumerate(nodes) if i not in number]
    extra = {i: np.zeros(len(nodes[i].times_s)) for i in free}
    extra[free[0]] += sum(float(node.times_s[0]) for node in decided)
    between = {}
    for (i, j), edge in edges.items():
        if i in number and j in number:
            between[number[i], number[j]] = edge
        elif i in number:
            extra[i] += edge[:, 0]
        elif j in number:
            extra[j] += edge[0]
        else:
            extra[free[0]] += edge[0, 0]
    left = [_plus(nodes[i], extra[i]) for i in free]
    first = left[0]
    left[0] = replace(
        first,
        kept_bytes=first.kept_bytes + sum(int(node.kept_bytes[0]) for node in decided),
        scratch_bytes=np.maximum(
            first.scratch_bytes, max(int(node.scratch_bytes[0]) for node in decided)
        ),
    )
    chosen = part.chosen.copy()
    for i, (place, options) in enumerate(zip(part.places, part.options, strict=True)):
        if i not in number:
            chosen[place] = options[0]
    return (
        Part(
            part.whole,
            Problem(tuple(left), between),
            tuple(part.options[i] for i in free),
            tuple(part.places[i] for i in free),
            chosen,
        ),
        tuple(number[i] for i in order if i in number),
    )


def _plus(node: Node, seconds: Array) -> Node:
    return replace(node, times_s=node.times_s + seconds) if seconds.any() else node
