"""Options that no best plan needs, whatever the other nodes choose.

With a and b options of node i, a replaces b if it needs no more memory and is never slower:

    kept_a <= kept_b,  scratch_a <= scratch_b,
    time_a + Σ_j max_c (edge_ij[a, c] - edge_ij[b, c]) <= time_b

over the options c of the neighbour j. Equals leave the first. All nodes are looked at against the
options that were there at the beginning of a pass, which is sound: a plan stays within them while
its options are replaced one after the other.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from cfp.search.part import Part
from cfp.search.problem import Array, Node, Numbers

PASSES = 2  # the second finds what the first one made possible; a third seldom finds more
PROBES = 4
CHUNK = 1 << 20


def prune(part: Part, *, scratch: bool = True) -> Part:
    """Without what cannot be and what is never needed. `scratch=False`: it does not count."""
    for _ in range(PASSES):
        if part.empty:
            break
        before, part = part, part.take(_needed(part, scratch))
        if part.size == before.size:
            break
    return part


def _needed(part: Part, scratch: bool) -> list[Numbers]:
    edges = part.problem.edges
    near: list[Counter[tuple[int, bool]]] = [Counter() for _ in part.problem.nodes]
    rows: dict[tuple[int, bool], Array] = {}
    for (i, j), edge in edges.items():
        near[i][id(edge), False] += 1
        near[j][id(edge), True] += 1
        rows[id(edge), False], rows[id(edge), True] = edge, edge.T
    known: dict[object, Numbers] = {}
    keep = []
    for node, paths in zip(part.problem.nodes, near, strict=True):
        key = (id(node), frozenset(paths.items()))
        if key not in known:
            known[key] = _of_node(node, [(rows[path], n) for path, n in paths.items()], scratch)
        keep.append(known[key])
    return keep


def _of_node(node: Node, paths: list[tuple[Array, int]], scratch: bool) -> Numbers:
    """The options left; `paths` are the rows of the edges and how often each counts."""
    alive = np.isfinite(node.times_s)
    for rows, _ in paths:
        alive &= np.isfinite(rows).any(axis=1)
    smaller = node.kept_bytes[:, None] <= node.kept_bytes[None, :]
    if scratch:
        smaller &= node.scratch_bytes[:, None] <= node.scratch_bytes[None, :]
    smaller &= alive[:, None] & alive[None, :]
    np.fill_diagonal(smaller, False)
    a, b = np.nonzero(smaller)
    for probes in (PROBES, None):  # most pairs fall at the first few columns
        loss = node.times_s[a] - node.times_s[b]
        for rows, count in paths:
            with np.errstate(invalid="ignore"):  # not known from a few columns: it stays
                loss += count * _worst(rows[:, :probes], a, b)
        a, b = a[~(loss > 0)], b[~(loss > 0)]
    replaces: NDArray[np.bool_] = np.zeros(smaller.shape, dtype=np.bool_)
    replaces[a, b] = True
    for option in np.unique(b)[::-1]:  # the last goes first, so equals leave the first
        alive[option] = not (replaces[:, option] & alive).any()
    return np.flatnonzero(alive)


def _worst(rows: Array, a: Numbers, b: Numbers) -> Array:
    """The most that a takes longer than b, where b can be at all."""
    found = np.empty(len(a))
    step = max(1, CHUNK // rows.shape[1])
    for start in range(0, len(a), step):
        mine, other = rows[a[start : start + step]], rows[b[start : start + step]]
        with np.errstate(invalid="ignore"):
            longer = np.where(np.isinf(other), -np.inf, mine - other)
        found[start : start + step] = longer.max(axis=1)
    return found
