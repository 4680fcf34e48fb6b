"""The least memory that any plan needs.

    M = min over the caps S on scratch of S + (least kept under S)

Least kept falls with S, so between two caps a < b tried, no cap needs less than the next one over a
plus what is kept under b. Caps are tried side by side, as lanes, where that leaves hope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cfp.search.levels import scratch_values
from cfp.search.part import Part
from cfp.search.problem import Array, Numbers
from cfp.search.solution import Point, points
from cfp.search.steps import Steps, build
from cfp.search.table import backtrack, forward

LANES = 16


def smallest(part: Part, order: Sequence[int]) -> Point | None:
    """A plan that needs least memory, not always the fastest such; None: no plan is possible."""
    steps = build(part.problem, order)
    only_possible = {
        id(step): replace(step, edge_s=np.where(np.isinf(step.edge_s), np.inf, 0.0))
        for step in steps.steps
    }
    steps = Steps(steps.order, tuple(only_possible[id(step)] for step in steps.steps))
    values = scratch_values(part)
    kept = np.full(len(values), np.nan)  # least under each cap, where tried
    best: Point | None = None
    hopeful = np.arange(len(values))
    while len(hopeful):
        ends = np.linspace(0, len(hopeful) - 1, min(LANES, len(hopeful)))
        tried = hopeful[np.unique(ends.round().astype(np.int64))]
        choices, kept[tried] = _under(part, steps, values[tried])
        plans = points(part.whole, part.numbered(choices))
        best = min([*plans, *([best] if best else [])], key=lambda p: p.memory_bytes, default=None)
        if best is None:
            return None
        hopeful = _hopeful(values, kept, best.memory_bytes)
    return best


def _under(part: Part, steps: Steps, caps: Numbers) -> tuple[Numbers, Array]:
    """The choices that keep least under each cap, where there is one, and what they keep."""
    costs = {
        id(node): np.where(node.scratch_bytes[:, None] <= caps, node.kept_bytes[:, None], np.inf)
        for node in part.problem.nodes
    }
    tables = forward(steps, [costs[id(node)] for node in part.problem.nodes], width=len(caps))
    return backtrack(tables, np.flatnonzero(np.isfinite(tables.last))), tables.last


def _hopeful(values: Numbers, kept: Array, least_bytes: int) -> Numbers:
    """The caps not tried that may need less."""
    tried = np.flatnonzero(~np.isnan(kept))
    others = np.flatnonzero(np.isnan(kept))
    above = np.searchsorted(tried, others)  # the highest cap is always tried
    return others[kept[tried[above]] + values[others] < least_bytes]
