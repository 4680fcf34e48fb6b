"""An exploration replayed on a table of times: how many programs, and how far from the best."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cfp.profile.explore.combos import Array, Rows
from cfp.profile.explore.explorer import COMPETITIVE, Combo, Explorer
from cfp.profile.explore.space import CombinationSpace, Counted

BATCH = 8


@dataclass(frozen=True, slots=True)
class Table:
    """The time of every combination: as it would be measured, and the truth. None: cannot run."""

    sizes: tuple[int, ...]
    measured: Mapping[Combo, float | None]
    truth: Mapping[Combo, float | None]


@dataclass(frozen=True, slots=True)
class Replay:
    """Regrets are shares of the best: 0.01 is one per cent slower than the best there is."""

    programs: int
    regret: float
    interface_regret: float  # mean over the interfaces that can compete; not tried counts as 0.5
    reason: str | None


def load(path: Path) -> Table:
    """A table in JSON: {"sizes": [3, 3], "times": {"0,1": seconds}}."""
    document = json.loads(path.read_text())
    times = {tuple(map(int, k.split(","))): v for k, v in document["times"].items()}
    return Table(tuple(document["sizes"]), times, times)


def ends(combo: Combo) -> Hashable:
    return combo[0], combo[-1]


def explore(explorer: Explorer, table: Table, batch: int = BATCH) -> int:
    """Answer the explorer from the table until it is done. A combination it lacks cannot run."""
    programs = 0
    while picks := explorer.ask(batch):
        programs += len(picks)
        for combo in picks:
            explorer.tell(combo, table.measured.get(combo))
    return programs


class Known:
    """Counts that are exact at once."""

    def __init__(self, counts: Callable[[Rows], Array]) -> None:
        self._counts = counts

    def __call__(self, rows: Rows) -> Array:
        return self._counts(rows)

    def exactly(self, combos: Iterable[Combo]) -> bool:
        return False


def replay(
    table: Table,
    interface: Callable[[Combo], Hashable] = ends,
    batch: int = BATCH,
    counts: Counted | None = None,
    limit: int | None = None,
) -> Replay:
    """Explores the table as if each look were a measurement."""
    space = CombinationSpace(table.sizes, interface=interface, counts=counts)
    explorer = Explorer(space, limit=limit)
    programs = explore(explorer, table, batch)
    truth = {combo: time for combo, time in table.truth.items() if time is not None}
    fastest: dict[Hashable, float] = {}
    for combo, time in truth.items():
        label = interface(combo)
        fastest[label] = min(time, fastest.get(label, time))
    best = min(fastest.values())
    found = explorer.best_by_interface
    lost = [
        truth[found[label]] / time - 1 if label in found else COMPETITIVE - 1
        for label, time in fastest.items()
        if time < COMPETITIVE * best
    ]
    assert explorer.best is not None
    regret = float(truth[explorer.best] / best - 1)
    return Replay(programs, regret, float(np.mean(np.minimum(lost, 0.5))), explorer.reason)


def synthesise(
    sizes: Sequence[int],
    seed: int,
    *,
    noise: float = 0.03,
    triples: float = 0.05,
    penalties: float = 0.04,
    infeasible: float = 0.0,
) -> Table:
    """Times as segments have them.

    Each strategy of a block has a time of its own and a layout it takes and leaves; where the
    layouts of neighbours differ, resharding costs something. A share of neighbouring triples is
    faster or slower by up to 10 % (what the compiler fuses or overlaps), some pairs of strategies
    are 3 to 10 times slower, some do not run, and what is measured differs from the truth by
    `noise`.
    """
    rng = np.random.default_rng(seed)
    blocks = range(len(sizes))
    unary = [rng.uniform(0.5, 2) * (1 + rng.uniform(0, 0.6, size)) for size in sizes]
    takes = [rng.integers(0, 3, size) for size in sizes]
    leaves = [rng.integers(0, 3, size) for size in sizes]
    moves = [rng.uniform(0.05, 0.8, (3, 3)) * (1 - np.eye(3)) for _ in blocks]
    drift = {
        (i, *choice): rng.uniform(0.9, 1.1)
        for i in blocks[2:]
        for choice in itertools.product(*map(range, sizes[i - 2 : i + 1]))
        if rng.random() < triples
    }
    slow, fails = {}, set()
    for i in blocks[1:]:
        for a, b in itertools.product(range(sizes[i - 1]), range(sizes[i])):
            if rng.random() < penalties:
                slow[i, a, b] = rng.uniform(3, 10)
            if rng.random() < infeasible:
                fails.add((i, a, b))
    truth: dict[Combo, float | None] = {}
    measured: dict[Combo, float | None] = {}
    for combo in itertools.product(*map(range, sizes)):
        time = 0.0
        factor = 1.0
        for i in blocks:
            time += unary[i][combo[i]]
            if i > 0:
                time += moves[i][leaves[i - 1][combo[i - 1]], takes[i][combo[i]]]
                factor *= slow.get((i, combo[i - 1], combo[i]), 1.0)
            factor *= drift.get((i, *combo[i - 2 : i + 1]), 1.0) if i > 1 else 1.0
        failed = any((i, combo[i - 1], combo[i]) in fails for i in blocks[1:])
        truth[combo] = None if failed else 1e-3 * time * factor
        wobble = float(np.exp(noise * rng.standard_normal()))
        measured[combo] = None if failed else 1e-3 * time * factor * wobble
    return Table(tuple(sizes), measured, truth)
