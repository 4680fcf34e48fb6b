"""The smallest set of distinct segments whose repetitions make up the block sequence.

A segment is a run of blocks in which no class of block occurs twice (a repetition inside would
be profiled twice) and whose strategies multiply to at most `MAX_SPACE`. Since the blocks of a
segment all differ, two occurrences of one segment never overlap, and a segment that occurs n
times can be charged 1/n for each use. A shortest path over cut positions with these charges
minimises, in this order:

    stray     blocks that repeat in the model but lie in a segment that does not
    distinct  the number of distinct segments
    space     the sum of their search spaces
    runs      the number of occurrences

The first keeps the embedding out of the first layer's segment, and so the layers alike. Runs are
compared by hash, and their length is bounded, so the work grows linearly with the number of
blocks.

No cover costs less than its charge, so a path that costs what it was charged is the best of all.
That holds when every occurrence of a chosen segment is used, as in models made of repeated
layers. For other sequences `cover` also searches with shorter runs only and with segments banned
one at a time, and keeps the best by `score`.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

MAX_SPACE = 10_000  # a transformer layer on two axes has 6561 options and should be one segment
EPSILON = 1e-9  # charges are sums of fractions 1/n, which round in the sixteenth digit

Run = tuple[int, int]  # start, stop
Cost = tuple[float, ...]  # stray, distinct, space, runs
Options = list[list[tuple[int, Hashable, int]]]  # per start: (stop, name, space)


@dataclass(frozen=True, slots=True)
class Item:
    """A block as the cover needs it. `loop` keeps segments from straddling loops."""

    kind: int
    wiring: tuple[int | None, ...]
    space: int
    loop: int | None = None
    times: int = 1


def cover(items: Sequence[Item], max_space: int = MAX_SPACE) -> list[Run]:
    """Divides the sequence into runs; `name` tells which of them are the same segment."""
    options = _options(items, max_space)
    best, charged = _shortest(items, options, banned=set())
    if not _less(charged, score(items, best)):
        return best
    found = [best]
    for bound in range(1, max(map(len, options)) + 1):
        found.append(_search(items, [row[:bound] for row in options]))
    return min(found, key=lambda runs: score(items, runs))


def _search(items: Sequence[Item], options: Options) -> list[Run]:
    """Returns a shortest path, found again without one of its segments while that is better."""
    banned: set[Hashable] = set()
    best, _ = _shortest(items, options, banned)
    used = Counter(name(items, run) for run in best)
    for key in sorted(used, key=lambda key: (used[key], repr(key))):
        trial, _ = _shortest(items, options, banned | {key})
        if trial and score(items, trial) < score(items, best):
            best = trial
            banned.add(key)
    return best


def name(items: Sequence[Item], run: Run) -> Hashable:
    """Returns what makes two runs the same segment: block classes, and wiring inside the run."""
    start, stop = run
    return tuple(
        (items[i].kind, tuple(d if d is not None and d <= i - start else None for d in wiring))
        for i in range(start, stop)
        for wiring in (items[i].wiring,)
    )


def _options(items: Sequence[Item], max_space: int) -> Options:
    """Returns for each start (stop, name, space) of every run that may be a segment."""
    options: Options = []
    for start in range(len(items)):
        row: list[tuple[int, Hashable, int]] = []
        seen: set[int] = set()
        space = 1
        for stop in range(start + 1, len(items) + 1):
            item = items[stop - 1]
            space *= item.space
            alone = stop == start + 1
            if not alone and (
                item.kind in seen or space > max_space or item.loop != items[start].loop
            ):
                break
            seen.add(item.kind)
            row.append((stop, name(items, (start, stop)), space))
        options.append(row)
    return options


def _shortest(
    items: Sequence[Item],
    options: Options,
    banned: set[Hashable],
) -> tuple[list[Run], Cost]:
    """Returns the cheapest path over positions to divide at, and its charge; it is empty if the
    banned runs leave none."""
    count = Counter(key for row in options for _, key, _ in row)
    kinds = Counter(item.kind for item in items)
    repeats = list(accumulate((kinds[item.kind] > 1 for item in items), initial=0))
    infinity: Cost = (math.inf, math.inf, math.inf, math.inf)
    cost: list[Cost] = [infinity] * len(items) + [(0.0, 0.0, 0.0, 0.0)]
    choice = [0] * len(items)
    for start in range(len(items) - 1, -1, -1):
        for stop, key, space in options[start]:
            if key in banned:
                continue
            uses = count[key]
            alone = uses == 1 and items[start].times == 1
            stray = repeats[stop] - repeats[start] if alone else 0
            step = (stray, 1 / uses, space / uses, 1)
            offer = tuple(map(operator.add, cost[stop], step))
            if _less(offer, cost[start]):
                cost[start] = offer
                choice[start] = stop
    path: list[Run] = []
    start = 0
    while start < len(items):
        if cost[start] == infinity:
            return [], infinity
        path.append((start, choice[start]))
        start = choice[start]
    return path, cost[0]


def _less(a: Cost, b: Cost) -> bool:
    for x, y in zip(a, b, strict=True):
        if x != y and not math.isclose(x, y, rel_tol=EPSILON, abs_tol=EPSILON):
            return x < y
    return False


def score(items: Sequence[Item], runs: Sequence[Run]) -> tuple[int, int, int, int]:
    """Returns what `cover` minimises, counted on the runs themselves."""
    names = Counter(name(items, run) for run in runs)
    kinds = Counter(item.kind for item in items)
    spaces: dict[Hashable, int] = {}
    stray = 0
    for start, stop in runs:
        key = name(items, (start, stop))
        spaces[key] = math.prod(item.space for item in items[start:stop])
        if names[key] == 1 and items[start].times == 1:
            stray += sum(kinds[item.kind] > 1 for item in items[start:stop])
    return stray, len(spaces), sum(spaces.values()), len(runs)
