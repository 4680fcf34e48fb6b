"""Combinations of strategies, one per block, as rows of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Combo = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]  # pairs of blocks


@dataclass(frozen=True, slots=True)
class Points:
    """Combinations as rows, each with its counts, (points, counts); there may be none."""

    rows: Rows
    counts: Array

    def take(self, index: NDArray[np.intp] | slice) -> Points:
        return Points(self.rows[index], self.counts[index])

    def plus(self, other: Points) -> Points:
        return Points(
            np.concatenate([self.rows, other.rows]), np.concatenate([self.counts, other.counts])
        )


def combos_of(rows: Rows) -> list[Combo]:
    return [tuple(row) for row in rows.tolist()]


def around(rows: Rows, sizes: Sequence[int]) -> Rows:
    """Returns the rows, and all that differ from one of them in one block."""
    steps = [np.repeat(rows, size, axis=0) for size in sizes]
    for block, size in enumerate(sizes):
        steps[block][:, block] = np.tile(np.arange(size), len(rows))
    return distinct(np.concatenate(steps))


def distinct(rows: Rows) -> Rows:
    """Returns each row once, found by a hash of 63 bits: numpy's own way sorts the rows whole."""
    weights = np.random.default_rng(0).integers(1, 2**62, rows.shape[1])
    _, first = np.unique(rows @ weights, return_index=True)
    return rows[first]
