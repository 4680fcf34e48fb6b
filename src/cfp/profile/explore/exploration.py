"""Explores the options of all segments side by side: some options of each at a time.

What was measured of a segment steers what is measured of it next (`explorer`), so a batch is small.
With a budget it is smaller still, and segments that take more of the step have more of it, except
for those that are quick to measure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from cfp.profile.explore.factors import OptionExplorer
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.progress import Ahead
from cfp.profile.programs.kinds import Kind, Option

BATCH = 8  # options asked of an explorer at once, two waves: more would be chosen knowing less
HURRIED = 4  # with a budget, of all explorers: what was measured soon steers what is
RESOLUTION_S = 1e-6  # less than starting a program varies: nothing is told to be faster


class Exploration:
    """Explorers of all kinds of a ledger, of which the first option was measured. `finished` says
    which kinds need no further option; `hurried` that there is a budget."""

    def __init__(self, ledger: Ledger, hurried: bool) -> None:
        self._ledger = ledger
        self._kinds = ledger.kinds
        self._quick = self._find_quick(hurried)
        self._explorers = [
            OptionExplorer(kind, hurried=kind.index not in self._quick) for kind in self._kinds
        ]
        self.finished = [False] * len(self._kinds)
        self.tell((kind, kind.first) for kind in self._kinds)

    def ask(self) -> list[tuple[Kind, Option]]:
        """Returns the options to measure next, those of the segments in turn: if time ends, some of
        every segment are measured. There are none when all is explored."""
        batches = []
        for kind, count in zip(self._kinds, self._counts(), strict=True):
            done = self.finished[kind.index]
            more = [] if done else self._explorers[kind.index].ask(count)
            batches.append([(kind, option) for option in more])
            self.finished[kind.index] = not more
        in_turn = itertools.chain(*itertools.zip_longest(*batches))
        return [one for one in in_turn if one is not None]

    def tell(self, measured: Iterable[tuple[Kind, Option]]) -> None:
        """Tells the explorers what options take that were measured."""
        for kind, option in measured:
            explorer, cost = self._explorers[kind.index], self._ledger.cost(kind, option)
            if cost is None:
                explorer.tell(option, None, False)
            else:
                time_s = cost.at_least_s if cost.rough else cost.time_s
                explorer.tell(option, max(time_s, RESOLUTION_S), cost.rough)

    def ahead(self) -> list[Ahead]:
        """Returns how many options of each kind will yet be asked for."""
        return [explorer.ahead() for explorer in self._explorers]

    def _find_quick(self, hurried: bool) -> set[int]:
        """Returns the segments that are explored as if there were no budget: without one all are,
        and with one those whose options are all measured in the time of one option of the segment
        that takes longest. What they cost their neighbours is not in their own time."""
        if not hurried:
            return {kind.index for kind in self._kinds}
        each_s = [self._ledger.measuring_s(kind, kind.first) for kind in self._kinds]
        quick = (kind for kind in self._kinds if kind.space * each_s[kind.index] <= max(each_s))
        return {kind.index for kind in quick}

    def _counts(self) -> list[int]:
        """Returns how many options to try of each segment: of one that is not quick to measure, by
        the share of a step that its occurrences take."""
        ledger = self._ledger
        times_s = [ledger.step_part_s(kind, ledger.fastest(kind)) for kind in self._kinds]
        total_s = max(sum(times_s), RESOLUTION_S)
        return [
            BATCH if kind.index in self._quick else max(1, math.ceil(HURRIED * time_s / total_s))
            for kind, time_s in zip(self._kinds, times_s, strict=True)
        ]
