"""What combinations have in common: how effects of blocks, and of pairs of them, make them covary.

Two combinations share the effect of a block where both split it alike, that of a pair where both
split both alike, and the rest by every other set of blocks, weighted equally.

On a mesh of several axes a block is split on each of them, and "block" stands for a block on one
axis (a factor). Between devices that are equally near, a split costs much the same on either axis,
so part of each effect may be common to all axes (`_common`): what was measured on one then says
something of the others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from cfp.profile.explore.combos import Array, Pairs, Points, Rows


@dataclass(frozen=True, slots=True)
class Effects:
    """Which factors act together: `pairs` of them. Each block has `axes` factors in a row."""

    pairs: Pairs
    axes: int = 1


def covariances(left: Points, right: Points, effects: Effects) -> Array:
    """Returns covariances of shape (5, left, right): by unary, paired and remaining effects, and by
    the unary and paired effects that axes have in common, each of scale 1."""
    return _parts(left.rows[:, None], right.rows, effects)


def own_variances(points: Points, effects: Effects) -> Array:
    """Returns the covariances of each point with itself, of shape (5, points)."""
    return _parts(points.rows, points.rows, effects)


def _parts(left: Rows, right: Rows, effects: Effects) -> Array:
    """Returns the covariances of rows with rows, of any shapes that numpy broadcasts."""
    same = left == right
    factors, pairs = same.shape[-1], effects.pairs
    unary = same.sum(-1, dtype=np.float64)
    paired = np.zeros_like(unary)
    for i, j in pairs:
        paired += same[..., i] & same[..., j]
    remaining = 2.0**unary - 1 - unary - paired
    sets = 2.0**factors - 1 - factors - len(pairs)
    common = _common(left, right, effects) if effects.axes > 1 else (unary, paired)
    return np.stack(
        [
            unary / factors,
            paired / max(1, len(pairs)),
            remaining / max(1.0, sets),
            common[0] / factors,
            common[1] / max(1, len(pairs)),
        ]
    )


def _common(left: Rows, right: Rows, effects: Effects) -> tuple[Array, Array]:
    """Returns on how many axes of the one a split is that the other has on some axis, counted for
    each axis of the other; and the same for pairs. Two splits of one block are a pair in either
    order."""
    axes = range(effects.axes)
    meet = {
        (a, b): left[..., a :: len(axes)] == right[..., b :: len(axes)]
        for a, b in itertools.product(axes, axes)
    }
    unary = sum((both.sum(-1, dtype=np.float64) for both in meet.values()), np.zeros(()))
    paired = np.zeros_like(unary)
    for i, j in effects.pairs:
        (first, a), (second, c) = divmod(i, len(axes)), divmod(j, len(axes))
        if first == second:
            for b, d in itertools.combinations(axes, 2):
                straight = meet[a, b][..., first] & meet[c, d][..., first]
                paired += straight | (meet[a, d][..., first] & meet[c, b][..., first])
        else:
            for b in axes:
                paired += meet[a, b][..., first] & meet[c, b][..., second]
    return unary, paired
