"""The best plan, and next ones that really differ.

Nodes of one kind are alike: a plan that swaps the options of two of them is no other plan. What
tells plans apart is which pairs (kind, way) they use, where a way is an option, or several options
that are much alike. Only the pairs of a plan count that make up a `share` of its time: plans that
differ in little tell little of one another. After p1, p2, ... comes the fastest plan that does
without a pair of each of them:

    min over the sets F of pairs, F ∩ used(p) ≠ ∅ for all p found, of the fastest plan without F

p1 is the fastest plan of all, with nothing left out (`Solver.fastest`), and its slack is known.
Sets are extended as plans are found; one that contains another is not needed. The fastest plans
without them are problems that differ in the times of their options, solved side by side. Under a
limit those times are bounds, as are those at a price for memory (`price`), and only sets that come
first are solved within it (`limit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cfp.search.elimination import best_order, build
from cfp.search.frontier import smallest
from cfp.search.limit import fastest_within
from cfp.search.price import best_price
from cfp.search.problem import Array, Point, Problem, best_of, points
from cfp.search.prune import prune
from cfp.search.solve import Solver
from cfp.search.subproblem import all_of
from cfp.search.table import backtrack, forward

WORK = 3e7  # elementary operations for one set within a limit: there may be dozens, at 50 ms each
LANES = 32  # sets at a time: each takes a fifth of what it does 4 at a time; 64 gain little

Pairs = frozenset[tuple[int, int]]


def alternatives(
    solver: Solver,
    limit_bytes: int | None,
    count: int,
    kinds: Sequence[int],
    *,
    ways: Sequence[Sequence[int]] | None = None,
    share: float = 0.0,
) -> list[Point]:
    """Returns at most `count` plans within the limit, fastest first. `kinds[i]` is the kind of node
    i, and `ways[i]` the way of each of its options (default: each is its own). Where no pair of a
    plan makes up the share, all of them count."""
    problem = solver.problem
    if len(kinds) != len(problem.nodes):
        raise ValueError(f"`kinds` must be {len(problem.nodes)}, one for each node.")
    sizes = [len(node.times_s) for node in problem.nodes]
    ways = [range(size) for size in sizes] if ways is None else ways
    if [len(some) for some in ways] != sizes:
        raise ValueError("`ways` must have one for each option of each node.")
    fastest = solver.fastest(limit_bytes)
    if fastest is None:
        return []
    without = _Without(problem, limit_bytes, kinds, [np.array(some) for some in ways], share)
    open_sets: dict[Pairs, _Bound] = {
        frozenset(): _Bound(fastest.plan.time_s, fastest.plan, exact=True)
    }
    plans: list[Point] = []
    while open_sets and len(plans) < count:
        pairs = min(open_sets, key=lambda pairs: open_sets[pairs].key)
        if not open_sets[pairs].exact:
            plan = without.within_limit(pairs)
            del open_sets[pairs]
            if plan is not None:
                open_sets[pairs] = _Bound(plan.time_s, plan, exact=True)
            continue
        plan = open_sets[pairs].plan
        plans.append(plan)
        used = without.used(plan)
        missed = [pairs for pairs in open_sets if not pairs & used]
        for pairs in missed:
            del open_sets[pairs]
        extended = {pairs | {pair} for pairs in missed for pair in used}
        new = [e for e in extended if not any(kept <= e for kept in open_sets)]
        new = [e for e in new if not any(other < e for other in new)]
        open_sets |= without.bounds(sorted(new, key=sorted), plan.time_s)
    return sorted(plans, key=lambda plan: plan.time_s)


@dataclass(frozen=True, slots=True)
class _Bound:
    """No plan without the pairs is faster; if exact, `plan` is the one that is so fast."""

    time_s: float
    plan: Point
    exact: bool

    @property
    def key(self) -> tuple[float, bool, int, tuple[int, ...]]:
        return self.time_s, self.exact, self.plan.memory_bytes, self.plan.choice


class _Without:
    """The fastest plans without some pairs."""

    def __init__(
        self,
        problem: Problem,
        limit_bytes: int | None,
        kinds: Sequence[int],
        ways: Sequence[NDArray[np.int_]],
        share: float,
    ) -> None:
        self.problem = problem
        self.limit_bytes = limit_bytes
        self.kinds = kinds
        self.ways = ways
        self.share = share
        self._known: list[Point] = []
        self._whole = all_of(problem)
        self._order = best_order(problem)
        self._steps = build(problem, self._order)
        self._over = [node.kept_bytes - node.kept_bytes.min() for node in problem.nodes]
        self._room, self._prices = 0, np.zeros(1)
        if limit_bytes is not None:
            base = sum(int(node.kept_bytes.min()) for node in problem.nodes)
            self._room = limit_bytes - base - int(self._whole.scratch_values()[0])
            self._prices = np.array([0.0, best_price(problem, self._steps, self._room)])

    def used(self, plan: Point) -> Pairs:
        """Returns the pairs that tell the plan apart."""
        times_s: dict[tuple[int, int], float] = {}
        for i, (kind, at) in enumerate(zip(self.kinds, plan.choice, strict=True)):
            pair = (kind, int(self.ways[i][at]))
            times_s[pair] = times_s.get(pair, 0.0) + float(self.problem.nodes[i].times_s[at])
        large = [pair for pair, time_s in times_s.items() if time_s >= self.share * plan.time_s]
        return frozenset(large or times_s)

    def bounds(self, sets: Sequence[Pairs], at_least_s: float) -> dict[Pairs, _Bound]:
        """Returns bounds from the fastest plans without memory, and at a price for it; sets that
        leave no plan are left out."""
        found = {}
        for start in range(0, len(sets), LANES):
            some = sets[start : start + LANES]
            costs = [self._costs(node, some) for node in range(len(self.kinds))]
            tables = forward(self._steps, costs, width=len(self._prices) * len(some))
            least = tables.last.reshape(len(self._prices), -1) - self._room * self._prices[:, None]
            possible = np.flatnonzero(np.isfinite(tables.last[: len(some)]))
            plans = points(self.problem, backtrack(tables, possible))
            for lane, plan in zip(possible.tolist(), plans, strict=True):
                if self.limit_bytes is None or plan.memory_bytes <= self.limit_bytes:
                    found[some[lane]] = _Bound(plan.time_s, plan, exact=True)
                else:
                    time_s = max(float(least[:, lane].max()), at_least_s)
                    found[some[lane]] = _Bound(time_s, plan, exact=False)
        return found

    def _costs(self, node: int, sets: Sequence[Pairs]) -> Array:
        """Returns the cost of each option, by price and set."""
        priced = (
            self.problem.nodes[node].times_s[:, None] + self._over[node][:, None] * self._prices
        )
        left = self._left(node, sets)
        costs = np.where(left[:, None, :], priced[:, :, None], np.inf)
        return costs.reshape(len(costs), -1)

    def within_limit(self, pairs: Pairs) -> Point | None:
        """Returns the fastest plan within the limit."""
        assert self.limit_bytes is not None
        keep = [np.flatnonzero(self._left(node, [pairs])) for node in range(len(self.kinds))]
        sub = prune(self._whole.take(keep))
        small = None if sub.empty else smallest(sub, self._order)
        if small is None or small.memory_bytes > self.limit_bytes:
            return None
        known = [plan for plan in self._known if not pairs & self.used(plan)]
        had = best_of([small, *known], self.limit_bytes) or small
        found, _ = fastest_within(sub, self._order, self.limit_bytes, had, WORK)
        self._known.append(found)
        return found

    def _left(self, node: int, sets: Sequence[Pairs]) -> NDArray[np.bool_]:
        """Returns whether a set leaves an option of the node, by option and set."""
        ways = self.ways[node]
        left = np.ones((len(ways), len(sets)), dtype=np.bool_)
        for lane, pairs in enumerate(sets):
            for kind, way in pairs:
                if kind == self.kinds[node]:
                    left[ways == way, lane] = False
        return left
