"""What varies among the options of a segment: how each block is split, on each axis of the mesh.

On several axes a block has a strategy for every choice of a split per axis: nine where each axis
has three. What a split costs on one axis depends little on the others, so the explorer varies each
of them as a factor of its own, and learns from few measurements what nine unrelated strategies per
block would hide. Some choices may not exist: a dim that one axis divides, and not two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from cfp.blocks import Strategy
from cfp.profile.explore.combos import Array, Combo
from cfp.profile.explore.counts import Counts, count_option
from cfp.profile.explore.explorer import Explorer, default_limit
from cfp.profile.explore.space import CombinationSpace
from cfp.profile.measure.progress import Ahead
from cfp.profile.programs.kinds import Kind, Option


class Factors:
    """The strategies of a kind's blocks, told apart by mesh axis. `sizes` has the factors of the
    first block, axis by axis, then those of the next. `complete` says that all their combinations
    exist."""

    def __init__(self, strategies: Sequence[Sequence[Strategy]]) -> None:
        self.axes = len(strategies[0][0])
        self._strategies = strategies
        self._numbers = [{strategy: i for i, strategy in enumerate(some)} for some in strategies]
        self._splits = [
            list(dict.fromkeys(itertools.chain(*some)))
            for some in strategies
            for _ in range(self.axes)
        ]
        self.sizes = tuple(map(len, self._splits))
        self.complete = math.prod(self.sizes) == math.prod(map(len, strategies))

    def split(self, combo: Combo) -> Combo:
        """Returns the factors of a strategy per block."""
        chosen = [some[i] for some, i in zip(self._strategies, combo, strict=True)]
        flat = [candidate for strategy in chosen for candidate in strategy]
        return tuple(splits.index(one) for splits, one in zip(self._splits, flat, strict=True))

    def join(self, factors: Combo) -> Combo | None:
        """Returns the strategy per block, by number; None where there is none."""
        flat = [splits[i] for splits, i in zip(self._splits, factors, strict=True)]
        found = []
        for block, numbers in enumerate(self._numbers):
            strategy = tuple(flat[block * self.axes : (block + 1) * self.axes])
            if strategy not in numbers:
                return None
            found.append(numbers[strategy])
        return tuple(found)

    def pairs(self, blocks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the factors that interact: those of blocks that do, axis by axis, and those of
        one block."""
        axes = range(self.axes)
        found = [(i * self.axes + axis, j * self.axes + axis) for i, j in blocks for axis in axes]
        for first in range(0, len(self.sizes), self.axes):
            found += [(first + a, first + b) for a in axes for b in axes if a < b]
        return found


class OptionExplorer:
    """An `Explorer` of a kind's options. The neighbours see of a segment how its first and its last
    block are split. `limit` is of the options asked for, `among` which of them there are (default:
    all). Where one is `hurried`, not all of a small space may be measured either: counts of what
    options send then say which come first."""

    def __init__(
        self,
        kind: Kind,
        *,
        limit: int | None = None,
        among: Callable[[Option], bool] | None = None,
        hurried: bool = False,
    ) -> None:
        self._factors = factors = Factors(kind.strategies)
        blocks = kind.extracts[0].blocks.blocks
        near = {(min(a, b.index), max(a, b.index)) for b in blocks for a in b.inputs_from}
        pairs = factors.pairs(sorted(pair for pair in near if pair[0] != pair[1]))
        axes = factors.axes

        def count(combo: Combo) -> Array | None:
            joined = factors.join(combo)
            return None if joined is None else count_option(kind, Option(joined))

        def exists(combo: Combo) -> bool:
            joined = factors.join(combo)
            return joined is not None and (among is None or among(Option(joined)))

        first = factors.split((0,) * len(kind.strategies))
        all_measured = kind.space <= default_limit(factors.sizes) and not hurried
        space = CombinationSpace(
            factors.sizes,
            interface=lambda combo: (combo[:axes], combo[-axes:]),
            counts=None if all_measured else Counts(count, factors.sizes, pairs, first),
            exists=None if factors.complete and among is None else exists,
        )
        self._explorer = Explorer(space, pairs=pairs, axes=axes, limit=limit)

    def ask(self, count: int) -> list[Option]:
        asked = [self._factors.join(combo) for combo in self._explorer.ask(count)]
        return [Option(combo) for combo in asked if combo is not None]

    def ahead(self) -> Ahead:
        """Returns how many options will still be asked for: all of a small space; else the search
        stops when nothing promises more, which may be soon."""
        return self._explorer.ahead()

    @property
    def best(self) -> Option | None:
        """Returns the fastest option told."""
        best = self._explorer.best
        joined = None if best is None else self._factors.join(best)
        return None if joined is None else Option(joined)

    def tell(self, option: Option, time_s: float | None, bound: bool) -> None:
        self._explorer.tell(self._factors.split(option.combo), time_s, bound)
