"""What must be true of the cells that were made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from bench.clustered import Cell, Planned
from bench.throughput.rows import behind, best_or_tied, mean_speedup

SLOW = ("slow_200mbit", "two_hosts_200mbit")
OVER_ALPA = 1.3
NEAR = 0.03  # of the best of all plans measured


@dataclass(frozen=True, slots=True)
class Target:
    what: str
    met: bool
    found: str


def targets(rows: Sequence[Planned]) -> list[Target]:
    """Those that these rows can tell about."""
    found = [_best_or_tied(rows)]
    slow = [row for row in rows if row.cell.cluster in SLOW]
    over_alpa = mean_speedup(slow, "alpa")
    if over_alpa is not None:
        what = f"on the slow networks at least {OVER_ALPA}x as fast as Alpa (geometric mean)"
        text = f"{over_alpa:.2f}x in {len(slow)} cells"
        found.append(Target(what, over_alpa >= OVER_ALPA, text))
    found += [
        target
        for target in (
            _changes(rows, "batch", lambda cell: (cell.cluster, cell.mesh, cell.model)),
            _changes(rows, "network", lambda cell: (cell.mesh, cell.model, cell.batch)),
            _selection(rows, 4, "splits the weights", lambda held: held < 0.5),
            _selection(rows, 16, "splits the batch", lambda held: held > 0.5),
        )
        if target is not None
    ]
    return found


def _best_or_tied(rows: Sequence[Planned]) -> Target:
    lost = [row.cell.name for row in rows if not best_or_tied(row)]
    text = f"in {len(rows) - len(lost)} of {len(rows)} cells"
    text += f", not in {', '.join(lost)}" if lost else ""
    return Target("CFP is the best or ties with it everywhere", not lost, text)


def _changes(
    rows: Sequence[Planned], with_what: str, case: Callable[[Cell], Hashable]
) -> Target | None:
    """Of the cases with several cells, in how many the plans differ."""
    plans: dict[Hashable, list[str]] = {}
    for row in rows:
        plans.setdefault(case(row.cell), []).append(row.splits)
    several = [some for some in plans.values() if len(some) > 1]
    if not several:
        return None
    count = sum(len(set(some)) > 1 for some in several)
    return Target(
        f"the plan changes with the {with_what}", count > 0, f"in {count} of {len(several)} cases"
    )


def _selection(
    rows: Sequence[Planned], batch: int, does: str, splits: Callable[[float], bool]
) -> Target | None:
    """Where it is easy to be wrong: GPT on the slow cluster."""
    cell = Cell("gpt", batch, "slow_200mbit", "4")
    for row in rows:
        if row.cell == cell:
            what = f"GPT's plan for {cell.cluster}, mesh 4, batch {batch} {does}, within {NEAR:.0%}"
            text = f"a device holds {row.held:.0%} of the weights, {behind(row):.1%} from the best"
            return Target(what, splits(row.held) and behind(row) <= NEAR, text)
    return None
