"""What must be true of the cells that were made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from bench.clustered import CFP, CHOSEN_BY, FRESH, Cell, Planned
from bench.throughput.rows import behind, in_words, mean_speedup, old_tie, shown_to_lose, verdicts

SLOW = ("slow_200mbit", "two_hosts_200mbit")
OVER_ALPA = 1.3
NEAR = 0.03  # of the best of all plans measured


@dataclass(frozen=True, slots=True)
class Target:
    what: str
    met: bool
    found: str


def targets(rows: Sequence[Planned]) -> list[Target]:
    """Returns the targets that these rows can tell about; what old rows tell is marked."""
    old = [row for row in rows if row.rule == CHOSEN_BY]
    fresh = [row for row in rows if row.rule == FRESH]
    found = [_old_best_or_tied(old)] if old else []
    found += [_not_slower(fresh)] if fresh else []
    for some in (old, fresh):
        slow = [row for row in some if row.cell.cluster in SLOW]
        over_alpa = mean_speedup(slow, "alpa")
        if over_alpa is not None:
            what = f"on the slow networks at least {OVER_ALPA}x as fast as Alpa (geometric mean)"
            text = f"{over_alpa:.2f}x in {len(slow)} cells"
            found.append(Target(_marked(what, some), over_alpa >= OVER_ALPA, text))
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


def _marked(what: str, rows: Sequence[Planned]) -> str:
    return f"old rule: {what}" if rows[0].rule == CHOSEN_BY else what


def _not_slower(rows: Sequence[Planned]) -> Target:
    """Returns the target that on fresh rounds no template is shown to be faster than CFP's plan."""
    lost = {row.cell.name: names for row in rows if (names := shown_to_lose(row))}
    text = (
        f"{len(rows)} cells; beside the fastest template CFP's plan is {in_words(verdicts(rows))}"
    )
    text += "".join(f"; slower than {', '.join(ns)} in {cell}" for cell, ns in lost.items())
    return Target("no template is shown to be faster than CFP's plan", not lost, text)


def _old_best_or_tied(rows: Sequence[Planned]) -> Target:
    lost = [row.cell.name for row in rows if row.best != CFP and not old_tie(row, CFP)]
    text = f"in {len(rows) - len(lost)} of {len(rows)} cells"
    text += f", not in {', '.join(lost)}" if lost else ""
    what = "CFP is the best or 1 is in the 95 % interval of the ratio to it"
    return Target(_marked(what, rows), not lost, text)


def _changes(
    rows: Sequence[Planned], with_what: str, case: Callable[[Cell], Hashable]
) -> Target | None:
    """Returns the target that plans differ, counted over the cases with several cells."""
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
    """Returns the target for GPT on the slow cluster, where it is easy to be wrong."""
    cell = Cell("gpt", batch, "slow_200mbit", "4")
    for row in rows:
        if row.cell == cell:
            what = f"GPT's plan for {cell.cluster}, mesh 4, batch {batch} {does}, within {NEAR:.0%}"
            text = f"a device holds {row.held:.0%} of the weights, {behind(row):.1%} from the best"
            return Target(_marked(what, [row]), splits(row.held) and behind(row) <= NEAR, text)
    return None
