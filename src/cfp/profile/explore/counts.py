"""What the options of a segment send and compute, counted for thousands of them at once.

To lay an option out and count (`layouts.traffic`) takes tens of milliseconds, and there may be
thousands. But what a block sends depends on how it is split itself and on how its neighbours are.
So those that differ from one option b in one factor, or in a pair that acts together, are counted,
and the others put together from them: with x_S for b where the factors in S are as in x,

    f(x) ~ f(b) + Σ_i (f(x_i) - f(b)) + Σ_(i,j)∈pairs (f(x_ij) - f(x_i) - f(x_j) + f(b)).

What does not exist adds nothing. Such a sum may be far off: of the few that matter, as they were
measured or lead, an explorer wants the counts themselves (`Counts.exactly`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cfp.layouts.traffic import count_traffic
from cfp.profile.explore.combos import Array, Combo, Rows, combos_of
from cfp.profile.programs.kinds import Kind, Option


class Counts:
    """Counts of combinations, found from few of them and put together for the others. `count` is f,
    which is None where a combination does not exist; `base` exists."""

    def __init__(
        self,
        count: Callable[[Combo], Array | None],
        sizes: Sequence[int],
        pairs: Sequence[tuple[int, int]],
        base: Combo,
    ) -> None:
        self._count = count
        self._sizes = sizes
        self._from = base
        first = count(base)
        if first is None:
            raise ValueError(f"`base` {base} must exist.")
        self._base = first
        self._single = [self._table((i,)) - first for i in range(len(sizes))]
        self._paired = {pair: self._together(*pair) for pair in pairs}
        self._exact: dict[Combo, Array] = {}

    def __call__(self, rows: Rows) -> Array:
        """Returns counts of shape (rows, counts), none below zero."""
        total = np.tile(self._base, (len(rows), 1))
        for i, table in enumerate(self._single):
            total += table[rows[:, i]]
        for (i, j), table in self._paired.items():
            total += table[rows[:, i], rows[:, j]]
        for place, combo in enumerate(combos_of(rows)) if self._exact else ():
            if combo in self._exact:
                total[place] = self._exact[combo]
        return np.maximum(total, 0)

    def exactly(self, combos: Iterable[Combo]) -> bool:
        """Counts these combinations, which exist, one by one from now on; returns whether some were
        sums of effects before."""
        new = [combo for combo in combos if combo not in self._exact]
        for combo in new:
            found = self._count(combo)
            assert found is not None
            self._exact[combo] = found
        return bool(new)

    def _together(self, i: int, j: int) -> Array:
        """Returns what a pair adds to its two factors alone."""
        alone = self._base + self._single[i][:, None] + self._single[j][None]
        return self._table((i, j), alone) - alone

    def _table(self, places: tuple[int, ...], otherwise: Array | None = None) -> Array:
        """Returns the counts of every choice at `places`."""
        sizes = [self._sizes[place] for place in places]
        found = np.empty((*sizes, len(self._base)))
        found[...] = self._base if otherwise is None else otherwise
        for choice in itertools.product(*map(range, sizes)):
            combo = list(self._from)
            for place, value in zip(places, choice, strict=True):
                combo[place] = value
            known = self._base if tuple(combo) == self._from else self._count(tuple(combo))
            if known is not None:
                found[choice] = known
        return found


def count_option(kind: Kind, option: Option) -> Array:
    """Returns the bytes that a device sends along each axis in a step, the number of collectives,
    the FLOPs of its products, and the bytes it writes."""
    total = np.zeros(2 * len(kind.mesh_shape) + 2)
    for extract, layouts in zip(kind.extracts, kind.layouts(option), strict=True):
        found = count_traffic(extract.graph, layouts, kind.mesh_shape)
        sent = (*found.sent_bytes, *found.collectives)
        total += extract.times * np.array([*sent, found.flops, found.written_bytes])
    return total
