"""The combinations of a segment: listed, or, where there are too many, searched.

Over `ENUMERATED` combinations are not listed: they are reached from some starts, such as the best
known, by steps of one block (`CombinationSpace._climb`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

import numpy as np

from cfp.profile.explore.combos import Array, Combo, Points, Rows, around, combos_of, distinct
from cfp.profile.explore.regress import Surrogate

ENUMERATED = 40_000  # combinations that are listed: to predict 26,000 takes 0.2 s a batch or more
BEAM = 48  # combinations that climb at once: each step predicts all their neighbours, some 1,000


class Counted(Protocol):
    """Numbers, zero or more, that may explain the times of combinations: a column for each."""

    def __call__(self, rows: Rows) -> Array:
        """Returns the counts of many combinations, as good as they can be had quickly for
        thousands."""
        ...

    def exactly(self, combos: Iterable[Combo]) -> bool:
        """Makes the counts of these combinations exact from now on; returns whether some were
        not."""
        ...


class CombinationSpace:
    """All combinations of `sizes` that `exists` says there are (default: all): `size` of them, or
    fewer where they are not listed. `interface` labels what the neighbours of the segment see of a
    combination; `counts` has what may explain the times of combinations, such as bytes sent."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        interface: Callable[[Combo], Hashable],
        counts: Counted | None = None,
        exists: Callable[[Combo], bool] | None = None,
    ) -> None:
        if not sizes or min(sizes) < 1:
            raise ValueError(f"`sizes` must be one or more per block, not {list(sizes)}.")
        self.sizes = tuple(sizes)
        self.counted = counts is not None
        self._ranges = [range(size) for size in self.sizes]
        self.interface = interface
        self._counts = counts
        self._exists = exists
        self._labels: dict[Hashable, int] = {}
        self._listed: tuple[Rows, Rows] | None = None
        self.size = math.prod(self.sizes)
        self._small = self.size <= ENUMERATED
        if self._small and exists is not None:
            self.size = len(self._every())

    def __contains__(self, combo: Combo) -> bool:
        """Returns whether a combination has these sizes; it may not exist all the same."""
        return len(combo) == len(self.sizes) and all(map(range.__contains__, self._ranges, combo))

    def exists(self, combo: Combo) -> bool:
        return self._exists is None or self._exists(combo)

    def label(self, combo: Combo) -> int:
        """Returns the number of a combination's interface."""
        return self._labels.setdefault(self.interface(combo), len(self._labels))

    @property
    def labels(self) -> int:
        """Returns how many interfaces were met."""
        return len(self._labels)

    def points(self, combos: Sequence[Combo] | Rows) -> Points:
        rows = np.array(combos, dtype=np.int64).reshape(-1, len(self.sizes))
        none = np.zeros((len(rows), 0))
        return Points(rows, none if self._counts is None else self._counts(rows))

    def exactly(self, combos: Iterable[Combo]) -> bool:
        """Makes their counts exact from now on; returns whether some were not."""
        return self._counts is not None and self._counts.exactly(combos)

    def candidates(
        self, model: Surrogate | None, starts: Sequence[Combo], seed: int
    ) -> tuple[Points, Rows]:
        """Returns all combinations, or those that the model leads to, and their labels."""
        listed = self._listed
        if listed is None:
            small = self._small
            rows = self._every() if small else self._existing(self._climb(model, starts, seed))
            listed = rows, np.array([self.label(combo) for combo in combos_of(rows)])
            self._listed = listed if small else None
        return self.points(listed[0]), listed[1]

    def _every(self) -> Rows:
        return self._existing(np.argwhere(np.ones(self.sizes)))

    def _existing(self, rows: Rows) -> Rows:
        if self._exists is None:
            return rows
        return rows[[self._exists(combo) for combo in combos_of(rows)]]

    def _climb(self, model: Surrogate | None, starts: Sequence[Combo], seed: int) -> Rows:
        """Returns all that is seen when the starts, and some others, improve by one block at a
        time."""
        rng = np.random.default_rng(seed)
        others = rng.integers(0, self.sizes, (BEAM, len(self.sizes)))
        beam = np.concatenate([np.array(starts).reshape(-1, len(self.sizes)), others]).astype(int)
        pool = distinct(beam)
        for _ in range(2 * len(self.sizes)):
            if model is None:
                break
            seen = around(beam, self.sizes)
            mean, sd = model.relative(*model.moments(self.points(seen)))
            labels = np.array([self.label(combo) for combo in combos_of(seen)])
            order = np.argsort(mean - sd, kind="stable")
            _, first = np.unique(labels[order], return_index=True)  # the best of each interface
            kept = np.unique(np.concatenate([order[np.sort(first)[:BEAM]], order[:BEAM]]))
            pool = distinct(np.concatenate([pool, seen]))
            before, beam = beam, seen[kept]
            if np.array_equal(before, beam):
                break
        return pool
