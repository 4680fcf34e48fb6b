"""The options of the plans that lead, by what was measured so far.

Under a memory limit these are the fastest plan within it, and the plans on the frontier that need
more: computing something again may make room for each of them. Where nothing fits, all of the
frontier leads, the smallest plan first. Without a limit, or where the fastest plan is far from it,
the fastest plan leads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cfp.analysis import Analysis
from cfp.profile import Option, Profile
from cfp.profile.explore.keeps import MOST, NEAR, Leading
from cfp.search import Point, Solver
from cfp.search.compose import Composition, compose
from cfp.segments.keep import Keep


def leading_plans(analysis: Analysis, profile: Profile, limit_bytes: float | None) -> Leading:
    """Returns the options that lead, and whether memory may decide."""
    composition = compose(analysis, profile)
    solver = Solver(composition.problem)
    fastest = solver.fastest(None)
    if fastest is None:  # no plan yet
        return Leading({}, binds=False, first={})
    if limit_bytes is None or composition.memory_bytes(fastest.plan.choice) <= NEAR * limit_bytes:
        options = _options(composition, [fastest.plan])
        return Leading(options, binds=False, first=_chosen(composition, fastest.plan))
    frontier = solver.frontier().plans
    larger = [p for p in frontier if composition.memory_bytes(p.choice) > NEAR * limit_bytes]
    within = solver.fastest(int(limit_bytes))
    first = min(frontier, key=lambda p: p.memory_bytes) if within is None else within.plan
    options = _options(composition, [first, fastest.plan, *larger])
    return Leading(options, binds=True, first=_chosen(composition, first))


def _options(composition: Composition, plans: list[Point]) -> dict[int, list[Option]]:
    """Returns by kind the options of the first two plans, then those that most of the others
    have, each as the step keeps things by itself."""
    found: dict[int, list[Option]] = {}
    for kind in dict.fromkeys(composition.kinds):
        counts: Counter[Option] = Counter()
        for number, plan in enumerate(plans):
            for of, option in zip(composition.kinds, composition.chosen(plan.choice), strict=True):
                if of == kind:
                    base = replace(option, keep=Keep.AS_WRITTEN)
                    counts[base] += len(plans) * composition.kinds.count(kind) if number < 2 else 1
        found[kind] = [option for option, _ in counts.most_common(MOST)]
    return found


def _chosen(composition: Composition, plan: Point) -> dict[int, list[Option]]:
    """Returns by kind the options of a plan."""
    found: dict[int, dict[Option, None]] = {}
    for kind, option in zip(composition.kinds, composition.chosen(plan.choice), strict=True):
        found.setdefault(kind, {})[option] = None
    return {kind: [*options] for kind, options in found.items()}
