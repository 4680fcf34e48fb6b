"""The combinations to measure first: few, in which every effect of a pair appears."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np

from cfp.profile.explore.combos import Array, Combo, Pairs


@cache
def covering(sizes: Combo, pairs: Pairs, most: int | None = None) -> tuple[Combo, ...]:
    """Returns few combinations in which every strategy, and every two of each pair of blocks,
    appear.

    The choice is greedy: each new combination starts at a missing pair and fills in the blocks one
    by one, by the number of missing pairs they add, where pairs of other blocks count a little. It
    tries several orders of filling and keeps the one that adds most. It ends at `most`
    combinations, covered or not.
    """
    linked = {(min(p), max(p)) for p in pairs}
    alone = set(range(len(sizes))) - {block for pair in linked for block in pair}
    missing = {
        (i, j): np.ones((sizes[i], sizes[j]))
        for i, j in itertools.combinations(range(len(sizes)), 2)
    }
    single = {block: np.ones(sizes[block]) for block in alone}

    def new(row: list[int | None], block: int) -> Array:
        """Returns what each strategy of `block` would add to the row so far."""
        total = single[block].copy() if block in single else np.zeros(sizes[block])
        for (i, j), table in missing.items():
            weight = 1.0 if (i, j) in linked else 1e-3
            if i == block:
                other = row[j]
                total += weight * (table.mean(1) / 10 if other is None else table[:, other])
            elif j == block:
                other = row[i]
                total += weight * (table.mean(0) / 10 if other is None else table[other])
        return total

    design: list[Combo] = []
    while any(missing[p].any() for p in linked) or any(s.any() for s in single.values()):
        if len(design) == most:
            break
        options = []
        for first in range(len(sizes)):
            row: list[int | None] = [None] * len(sizes)
            added = 0.0
            for block in [*range(first, len(sizes)), *range(first - 1, -1, -1)]:
                gains = new(row, block)
                row[block] = int(np.argmax(gains))
                added += float(gains.max())
            options.append((-added, tuple(choice for choice in row if choice is not None)))
        chosen = min(options)[1]
        design.append(chosen)
        for (i, j), table in missing.items():
            table[chosen[i], chosen[j]] = 0
        for block, flags in single.items():
            flags[chosen[block]] = 0
    return tuple(design)
