"""What a communication costs in Alpa's model of a cluster.

With n devices along a mesh axis, its latency alpha and its inverse bandwidth beta (1 by default),
and b the bytes of the tensor that is gathered, reduced or exchanged (`ClusterEnvironment` in
Alpa's auto_sharding_strategy.h; round is to the nearest whole number):

    all-gather       round(alpha + beta (n-1)/n b) + 0.1
    all-reduce       round(alpha + beta 2 (n-1)/n b) + 0.01
    reduce-scatter   round(alpha + beta (n-1)/n b) + 0.001
    all-to-all       round(alpha + beta (n-1)/n/n b (n/2)) + 0.001

They are symbols with tie-breakers, not measurements: a byte costs 1 whatever the machine, and the
factor n/2 was fitted to V100s on NVLink. `resharding` prices a change of layout of one tensor:

    equal, or only finer             nothing: every device cuts its part out
    one dim gathered, one cut        all-to-all of the whole tensor; forbidden where more than one
                                     axis is longer than 1
    dims gathered                    an all-gather per axis, of what the axis assembles
    a dim from one axis to another   forbidden
    both axes on one dim (mixed),    one all-to-all or one all-gather of 1/devices of the tensor,
    to or from one axis per dim      else forbidden

Along the axis that the batch is forced on, all-gather and all-to-all are forbidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from cfp.layouts import Layout

FORBIDDEN = math.inf

ALL_GATHER = "all-gather"
ALL_REDUCE = "all-reduce"
REDUCE_SCATTER = "reduce-scatter"
ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A logical mesh: `alpha` and `beta` per axis; `forced_axis` carries the batch alone."""

    shape: tuple[int, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    allow_all_gather: bool = True
    allow_all_to_all: bool = True
    forced_axis: int | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """Returns the axes that split anything."""
        return tuple(axis for axis, size in enumerate(self.shape) if size > 1)

    @property
    def replicated_penalty(self) -> float:
        """Returns what Alpa adds for a replicated argument: an all-reduce of one byte along every
        axis."""
        return _round(sum(self.price(ALL_REDUCE, 1.0, axis) for axis in range(len(self.shape))))

    def price(self, kind: str, size_bytes: float, axis: int) -> float:
        n, a, b = self.shape[axis], self.alpha[axis], self.beta[axis]
        share = b * (n - 1) / n * size_bytes
        if kind == ALL_REDUCE:
            return _round(a + 2 * share) + 0.01
        if kind == REDUCE_SCATTER:
            return _round(a + share) + 0.001
        if axis == self.forced_axis:
            return FORBIDDEN
        if kind == ALL_GATHER:
            return _round(a + share) + 0.1 if self.allow_all_gather else FORBIDDEN
        return _round(a + share / n * (n / 2)) + 0.001 if self.allow_all_to_all else FORBIDDEN

    def tiles(self, layout: Layout) -> int:
        """Returns into how many parts a layout cuts a tensor."""
        return math.prod(self.shape[axis] for axis, dim in enumerate(layout) if dim is not None)


@dataclass(frozen=True, slots=True)
class Move:
    """One collective. `size_bytes` is the b of the formulas above."""

    kind: str
    axis: int
    size_bytes: float


@lru_cache(maxsize=1 << 17)
def resharding(
    cluster: Cluster, size_bytes: int, source: Layout, target: Layout
) -> tuple[float, tuple[Move, ...]]:
    """Returns the cost of bringing a tensor from one layout to another, and its collectives."""
    if source == target:
        return 0.0, ()
    moves = _moves(cluster, size_bytes, source, target)
    if moves is None:
        return FORBIDDEN, ()
    return sum(cluster.price(m.kind, m.size_bytes, m.axis) for m in moves), moves


def gathering(cluster: Cluster, size_bytes: int, source: Layout) -> tuple[float, tuple[Move, ...]]:
    """Returns the cost of gathering a tensor whole, which is left where nothing else is allowed."""
    free = replace(cluster, allow_all_gather=True, forced_axis=None)
    return resharding(free, size_bytes, source, (None,) * len(source))


def _moves(
    cluster: Cluster, size_bytes: int, source: Layout, target: Layout
) -> tuple[Move, ...] | None:
    split = any(dim is not None for dim in source) and any(dim is not None for dim in target)
    if split and is_flat(cluster, source) != is_flat(cluster, target):
        return _mixed(cluster, size_bytes, source, target)
    had, wants = _by_dim(source), _by_dim(target)
    gathers = [had[dim] for dim in had if dim not in wants]
    slices = [wants[dim] for dim in wants if dim not in had]
    if any(had[dim] != wants[dim] for dim in had if dim in wants):
        return None
    if len(slices) > 1 and len(gathers) > 1:
        return None
    if len(slices) == 1 and len(gathers) == 1:
        if len(cluster.axes) > 1:
            return None
        return (Move(ALL_TO_ALL, gathers[0][0], size_bytes),)
    moves: list[Move] = []
    gathered = size_bytes / cluster.tiles(source)
    for axes in gathers:
        for axis in reversed(axes):
            gathered *= cluster.shape[axis]
            moves.append(Move(ALL_GATHER, axis, gathered))
    return tuple(moves)


def _mixed(
    cluster: Cluster, size_bytes: int, source: Layout, target: Layout
) -> tuple[Move, ...] | None:
    """Returns the moves between a dim that takes both axes and one axis per dim
    (ReshardingCostMixedMeshShape)."""
    if len(cluster.axes) != 2:
        return None
    major, minor = cluster.axes
    to_flat = is_flat(cluster, target)
    flat, apart = (target, source) if to_flat else (source, target)
    part = size_bytes / cluster.tiles(flat)
    if apart[major] not in (None, flat[major]) or apart[minor] == flat[major]:
        return None
    exchanged = apart[minor] is not None
    gathered = not to_flat and (apart[major] is None or not exchanged)
    if exchanged and gathered:
        return None
    if exchanged:
        return (Move(ALL_TO_ALL, minor, part),)
    if gathered:
        return (Move(ALL_GATHER, major if apart[major] is None else minor, part),)
    return ()


def is_flat(cluster: Cluster, layout: Layout) -> bool:
    """Returns whether one dim takes several axes, and all of them."""
    dims = {layout[axis] for axis in cluster.axes}
    return len(cluster.axes) > 1 and len(dims) == 1 and None not in dims


def _by_dim(layout: Layout) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for axis, dim in enumerate(layout):
        if dim is not None:
            found[dim] = (*found.get(dim, ()), axis)
    return found


def _round(cost: float) -> float:
    return math.floor(cost + 0.5)
