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

from cfp.search.problem import Array, Node, Numbers
from cfp.search.subproblem import Subproblem

PASSES = 2  # the second finds what the first one made possible; a third seldom finds more
PROBES = 4  # columns looked at before all of them: most pairs of options fall there
CHUNK = 1 << 20  # numbers compared at once: 8 MB


def prune(sub: Subproblem, *, scratch: bool = True) -> Subproblem:
    """Returns the problem without what cannot be and what is never needed. With `scratch=False`
    scratch does not count."""
    for _ in range(PASSES):
        if sub.empty:
            break
        before, sub = sub, sub.take(_needed(sub, scratch))
        if sub.size == before.size:
            break
    return sub


def _needed(sub: Subproblem, scratch: bool) -> list[Numbers]:
    problem = sub.problem
    near: list[Counter[tuple[int, bool]]] = [Counter() for _ in problem.nodes]
    for (i, j), number in problem.edge_numbers.items():
        near[i][number, False] += 1
        near[j][number, True] += 1
    edges = problem.distinct_edges
    known: dict[object, Numbers] = {}
    keep = []
    for node, number, paths in zip(problem.nodes, problem.node_numbers, near, strict=True):
        key = (number, frozenset(paths.items()))
        if key not in known:
            rows = [(edges[e].T if turned else edges[e], n) for (e, turned), n in paths.items()]
            known[key] = _of_node(node, rows, scratch)
        keep.append(known[key])
    return keep


def _of_node(node: Node, paths: list[tuple[Array, int]], scratch: bool) -> Numbers:
    """Returns the options left; `paths` are the rows of the edges and how often each counts."""
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
    """Returns the most that a takes longer than b, where b can be at all."""
    found = np.empty(len(a))
    step = max(1, CHUNK // rows.shape[1])
    for start in range(0, len(a), step):
        mine, other = rows[a[start : start + step]], rows[b[start : start + step]]
        with np.errstate(invalid="ignore"):
            longer = np.where(np.isinf(other), -np.inf, mine - other)
        found[start : start + step] = longer.max(axis=1)
    return found
