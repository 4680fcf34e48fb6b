"""The cells that were made, kept in a file, and how many times as fast CFP is in them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.clustered import CFP, CLUSTERS, MESHES, MODELS, NAMES, Cell, Planned, Step
from cfp.profile.measure.confidence import Verdict, median_interval, ratios


def read_rows(file: Path) -> dict[Cell, Planned]:
    found = {}
    for row in json.loads(file.read_text()) if file.exists() else []:
        cell = Cell(**row["cell"])
        steps = {
            name: Step(**{**step, "runs_s": tuple(step.get("runs_s", ()))})
            for name, step in row["steps"].items()
        }
        found[cell] = Planned(**{**row, "cell": cell, "steps": steps})
    return found


def write_rows(file: Path, found: Mapping[Cell, Planned]) -> None:
    rows = [json.dumps(asdict(row)) for row in sorted(found.values(), key=order)]
    file.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def order(planned: Planned) -> tuple[int, int, int, int]:
    """Returns the place of a row in the tables."""
    cell = planned.cell
    return (
        CLUSTERS.index(cell.cluster) if cell.cluster in CLUSTERS else len(CLUSTERS),
        MESHES.index(cell.mesh) if cell.mesh in MESHES else len(MESHES),
        MODELS.index(cell.model),
        cell.batch,
    )


def by_panel(rows: Sequence[Planned]) -> dict[tuple[str, str], list[Planned]]:
    """Returns the rows by cluster and mesh."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for row in rows:
        found.setdefault((row.cell.cluster, row.cell.mesh), []).append(row)
    return found


def mean_speedup(rows: Sequence[Planned], over: str) -> float | None:
    """Returns the geometric mean, of the rows where the other one runs."""
    found = [
        row.steps[over].time_s / row.steps[CFP].time_s
        for row in rows
        if over in row.steps and row.steps[over].failed is None
    ]
    return statistics.geometric_mean(found) if found else None


def verdicts(rows: Sequence[Planned]) -> dict[Verdict, list[str]]:
    """Returns the names of cells by what their rounds show of CFP's plan beside the fastest
    template; those where no template runs are left out."""
    found: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for row in rows:
        if row.best_other is not None:
            found[row.judge(CFP, row.best_other).verdict].append(row.cell.name)
    return found


def in_words(said: Mapping[Verdict, Sequence[str]]) -> str:
    """Returns `faster in 36, a tie in 6, not told apart in 101, slower in 1 (unshaped-4-gpt-4)`."""
    order = (Verdict.FASTER, Verdict.TIE, Verdict.UNTOLD, Verdict.SLOWER)
    words = [f"{'a ' * (v is Verdict.TIE)}{v} in {len(said[v])}" for v in order]
    lost = said[Verdict.SLOWER]
    return ", ".join(words) + (f" ({', '.join(lost)})" if lost else "")


def shown_to_lose(row: Planned) -> list[str]:
    """Returns the templates that are shown to be faster than CFP's plan."""
    ran = [n for n in NAMES if n != CFP and n in row.steps and row.steps[n].failed is None]
    return [name for name in ran if row.judge(CFP, name).verdict is Verdict.SLOWER]


def old_tie(row: Planned, name: str) -> bool:
    """Returns whether a plan was called a tie with the best by the older rule: 1 is in the 95 %
    interval of the ratio. Rounds too few to tell anything were ties, and so was losing seven of
    eight."""
    found = ratios(row.steps[name].runs_s, row.steps[row.best].runs_s)
    if not found:
        return False
    low, high = median_interval(found)
    return low <= 1.0 <= high


def behind(row: Planned) -> float:
    """Returns by how much the fastest is ahead, if intervals do not count."""
    return row.steps[CFP].time_s / row.steps[row.best].time_s - 1
