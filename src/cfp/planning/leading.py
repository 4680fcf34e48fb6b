"""The options of the plans that lead, by what was measured so far and what is expected.

Under a memory limit these are the fastest plan within it, and the one that fits with something to
spare: full steps need a little more or less than predicted. Where nothing fits, the smallest plan
leads. Without a limit, or where the fastest plan is far from it, the fastest plan leads.
"""

from __future__ import annotations

from cfp.analysis import Analysis
from cfp.profile import Option, Profile
from cfp.profile.explore.keeps import NEAR, Leading
from cfp.search import Fastest, Point, Solver
from cfp.search.compose import Composition, compose


def leading_plans(analysis: Analysis, profile: Profile, limit_bytes: float | None) -> Leading:
    """Returns the options that lead, and whether memory may decide."""
    composition = compose(analysis, profile)
    solver = Solver(composition.problem)
    fastest = solver.fastest(None)
    if fastest is None:  # no plan yet
        return Leading(binds=False, fits=False, first={}, spare={})
    if limit_bytes is None or composition.memory_bytes(fastest.plan.choice) <= NEAR * limit_bytes:
        first = _chosen(composition, fastest.plan)
        return Leading(binds=False, fits=True, first=first, spare={})
    within, near = (solver.fastest(int(share * limit_bytes)) for share in (1.0, NEAR))
    return Leading(
        binds=True,
        fits=within is not None,
        first=_chosen(composition, _or_smallest(solver, within)),
        spare=_chosen(composition, _or_smallest(solver, near)),
    )


def _or_smallest(solver: Solver, found: Fastest | None) -> Point:
    return solver.frontier().plans[0] if found is None else found.plan


def _chosen(composition: Composition, plan: Point) -> dict[int, list[Option]]:
    """Returns by kind the options of a plan."""
    found: dict[int, dict[Option, None]] = {}
    for kind, option in zip(composition.kinds, composition.chosen(plan.choice), strict=True):
        found.setdefault(kind, {})[option] = None
    return {kind: [*options] for kind, options in found.items()}
