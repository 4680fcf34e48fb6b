"""In which order to visit the nodes: the one that takes least work.

Any order gives the same answer. Candidates are the order given and greedy ones: next comes the
neighbour of the frontier after which fewest states are left. Over a net with nested skips this
walks from both ends towards the middle.
"""

from __future__ import annotations

from collections.abc import Iterable

from cfp.search.problem import Problem
from cfp.search.walk import Sight, Walk, states

LOOKED_AT = 16  # of a hub with a thousand neighbours, the first will do


def best_order(problem: Problem) -> tuple[int, ...]:
    """The order with least work; of equals the first candidate."""
    sight = Sight(problem)
    count = len(problem.nodes)
    best = tuple(range(count))
    least = _work(sight, best)
    loose = sorted(range(count), key=lambda i: (len(sight.near[i]), i))[:1]
    for start in dict.fromkeys([*loose, 0, count - 1] if count else []):
        order = _greedy(sight, start)
        work = _work(sight, order)
        if work < least:
            best, least = order, work
    return best


def _work(sight: Sight, order: Iterable[int]) -> int:
    walk = Walk(sight)
    return sum(walk.visit(node).work(node) for node in order)


def _greedy(sight: Sight, start: int) -> tuple[int, ...]:
    walk = Walk(sight)
    order = [start]
    walk.visit(start)
    while walk.left:
        near = {j for i in walk.frontier for j in sight.near[i]} & walk.left
        looked_at = sorted(near)[:LOOKED_AT] or [min(walk.left)]
        _, _, node = min((*_cost(walk, j), j) for j in looked_at)
        order.append(node)
        walk.visit(node)
    return tuple(order)


def _cost(walk: Walk, node: int) -> tuple[int, int]:
    visit = walk.look(node)
    return states(visit.after), visit.work(node)
