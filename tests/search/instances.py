"""Random problems, and what is true of them by trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from cfp.search import Node, Problem

GRAPHS = ("chain", "skips", "any", "apart", "alike")
AWKWARD = 10**9 + 7  # bytes: no divisor in common with anything

Plan = tuple[float, int, tuple[int, ...]]  # seconds, bytes, choice


def instance(
    seed: int, sizes: list[int], graph: str, largest_bytes: int = 8, scratch: bool = True
) -> Problem:
    """Times are whole numbers, so sums are exact. Rows repeat, and some things cannot be. Nodes
    that are `alike` share their arrays, and so do their edges."""
    rng = np.random.default_rng(seed)
    if graph == "alike":
        two = instance(seed, [sizes[0]] * 3, "any", largest_bytes, scratch)
        nodes = [two.nodes[kind] for kind in rng.integers(0, 2, len(sizes))]
        pairs = itertools.combinations(range(len(sizes)), 2)
        some = list(two.edges.values())
        return Problem(
            tuple(nodes),
            {pair: some[rng.integers(len(some))] for pair in pairs if some and rng.random() < 0.7},
        )
    nodes = []
    for size in sizes:
        times = rng.integers(0, 20, size).astype(float)
        times[rng.random(size) < 0.05] = np.inf
        kept = rng.integers(0, largest_bytes, size)
        nodes.append(Node(times, kept, rng.integers(0, largest_bytes if scratch else 1, size)))
    edges = {}
    for i, j in itertools.combinations(range(len(sizes)), 2):
        chance = {"chain": 0.0, "skips": 0.25, "any": 0.6, "apart": 0.2}[graph]
        near = j == i + 1 and graph in ("chain", "skips")
        if near or rng.random() < chance:
            edge = rng.integers(0, 12, (sizes[i], sizes[j])).astype(float)
            edge[rng.random(edge.shape) < 0.15] = np.inf
            lies = rng.integers(0, 2, sizes[i]) if rng.random() < 0.5 else np.arange(sizes[i])
            edges[i, j] = edge[np.minimum(lies, sizes[i] - 1)]
    return Problem(tuple(nodes), edges)


def instances(
    largest_bytes: int = 8, nodes: int = 5, options: int = 4
) -> st.SearchStrategy[Problem]:
    return st.builds(
        instance,
        seed=st.integers(0, 2**32),
        sizes=st.lists(st.integers(1, options), min_size=1, max_size=nodes),
        graph=st.sampled_from(GRAPHS),
        largest_bytes=st.just(largest_bytes),
        scratch=st.booleans(),
    )


def every_choice(problem: Problem) -> Iterator[tuple[int, ...]]:
    yield from itertools.product(*(range(len(node.times_s)) for node in problem.nodes))


def every_plan(problem: Problem) -> list[Plan]:
    """All that are possible, by the definition."""
    found = []
    for choice in every_choice(problem):
        time_s = sum(float(n.times_s[c]) for n, c in zip(problem.nodes, choice, strict=True))
        time_s += sum(float(e[choice[i], choice[j]]) for (i, j), e in problem.edges.items())
        kept = sum(int(n.kept_bytes[c]) for n, c in zip(problem.nodes, choice, strict=True))
        scratch = max(int(n.scratch_bytes[c]) for n, c in zip(problem.nodes, choice, strict=True))
        if math.isfinite(time_s):
            found.append((time_s, kept + scratch, choice))
    return found


def frontier(plans: list[Plan]) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    for time_s, memory, _ in sorted(plans, key=lambda plan: (plan[1], plan[0])):
        if not found or time_s < found[-1][0]:
            found.append((time_s, memory))
    return found


def best_time(plans: list[Plan], limit_bytes: float) -> float:
    return min((time_s for time_s, memory, _ in plans if memory <= limit_bytes), default=math.inf)
