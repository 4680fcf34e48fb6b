"""The cells that were made, kept in a file, and how many times as fast CFP is in them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.clustered import CFP, CLUSTERS, MESHES, MODELS, Cell, Planned, Step


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
    """As tables show them."""
    cell = planned.cell
    return (
        CLUSTERS.index(cell.cluster) if cell.cluster in CLUSTERS else len(CLUSTERS),
        MESHES.index(cell.mesh) if cell.mesh in MESHES else len(MESHES),
        MODELS.index(cell.model),
        cell.batch,
    )


def by_panel(rows: Sequence[Planned]) -> dict[tuple[str, str], list[Planned]]:
    """By cluster and mesh."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for row in rows:
        found.setdefault((row.cell.cluster, row.cell.mesh), []).append(row)
    return found


def mean_speedup(rows: Sequence[Planned], over: str) -> float | None:
    """The geometric mean, of the rows where the other one runs."""
    found = [
        row.steps[over].time_s / row.steps[CFP].time_s
        for row in rows
        if over in row.steps and row.steps[over].failed is None
    ]
    return statistics.geometric_mean(found) if found else None


def best_or_tied(row: Planned) -> bool:
    return row.best == CFP or row.ties(CFP, row.best)


def behind(row: Planned) -> float:
    """By how much the fastest is ahead, if intervals do not count."""
    return row.steps[CFP].time_s / row.steps[row.best].time_s - 1
