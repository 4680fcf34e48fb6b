"""Training throughput on clusters whose network matters: the paper's main figure.

Every model at every batch size on every cluster and mesh is planned by CFP on that cluster
(`bench.cluster`: real processes, real bytes over TCP, shaped by the kernel). Data parallel,
Megatron, ZeRO-1, FSDP and Alpa run beside it, in turn, in one run. A plan ties with the best where
their 95 % intervals overlap.

`python -m bench.throughput` writes bench/results/throughput.md and .png. It needs root. All of it
takes many hours on two cores; `--models`, `--batches`, `--clusters` and `--meshes` take a part.
What cells came to is kept in throughput.json and shown with the rest. A cell that is there is not
made again, unless its entry is taken out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.cluster.spec import read_spec
from bench.clustered import (
    BATCHES,
    CFP,
    CLUSTERS,
    MESHES,
    MODELS,
    NAMES,
    SHAPE,
    Cell,
    Planned,
    Step,
    plan_cell,
)

OUT = Path(__file__).parent / "results" / "throughput.md"
CELLS = math.prod(map(len, (MODELS, BATCHES, CLUSTERS, MESHES)))
SLOW = ("slow_200mbit", "two_hosts_200mbit")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument("--meshes", nargs="+", default=list(MESHES))
    parser.add_argument("--budget", help="of each plan, such as 3m [default: none]")
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "clusters")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    wanted = itertools.product(options.clusters, options.meshes, options.models, options.batches)
    kept = options.out.with_suffix(".json")
    found = read_rows(kept)
    for cell in (Cell(model, batch, cluster, mesh) for cluster, mesh, model, batch in wanted):
        if cell in found:
            continue
        planned = plan_cell(cell, options.store.absolute(), options.budget)
        if planned is not None:
            found[cell] = planned
            write_rows(kept, found)
    rows = sorted(found.values(), key=_order)
    picture = options.out.with_suffix(".png")
    options.out.write_text(render(rows, kept.name, picture.name))
    draw(rows, picture)
    print(options.out.read_text())


def read_rows(file: Path) -> dict[Cell, Planned]:
    found = {}
    for row in json.loads(file.read_text()) if file.exists() else []:
        cell = Cell(**row["cell"])
        steps = {name: Step(**step) for name, step in row["steps"].items()}
        found[cell] = Planned(**{**row, "cell": cell, "steps": steps})
    return found


def write_rows(file: Path, found: Mapping[Cell, Planned]) -> None:
    rows = [json.dumps(asdict(row)) for row in sorted(found.values(), key=_order)]
    file.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def _order(planned: Planned) -> tuple[int, int, int, int]:
    cell = planned.cell
    return (
        CLUSTERS.index(cell.cluster) if cell.cluster in CLUSTERS else len(CLUSTERS),
        MESHES.index(cell.mesh) if cell.mesh in MESHES else len(MESHES),
        MODELS.index(cell.model),
        cell.batch,
    )


def speedups(rows: Sequence[Planned], over: str) -> list[float]:
    return [
        row.steps[over].time_s / row.steps[CFP].time_s
        for row in rows
        if over in row.steps and row.steps[over].failed is None
    ]


def mean_speedup(rows: Sequence[Planned], over: str) -> str:
    """The geometric mean, of the rows where the other one runs."""
    found = speedups(rows, over)
    return f"{statistics.geometric_mean(found):.2f}" if found else "none"


def by_panel(rows: Sequence[Planned]) -> dict[tuple[str, str], list[Planned]]:
    """By cluster and mesh."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for row in rows:
        found.setdefault((row.cell.cluster, row.cell.mesh), []).append(row)
    return found


def best_or_tied(row: Planned) -> bool:
    return row.best == CFP or row.ties(CFP, row.best)


def behind(rows: Sequence[Planned]) -> str:
    """How often, and how far, another is faster if intervals do not count."""
    found = {row.cell: row.steps[CFP].time_s / row.steps[row.best].time_s - 1 for row in rows}
    slower = {cell: by for cell, by in found.items() if by > 0}
    text = f"By the medians alone it is the fastest in {len(rows) - len(slower)}"
    if slower:
        worst = max(slower, key=lambda cell: slower[cell])
        text += (
            f"; in the other {len(slower)} the fastest is ahead by "
            f"{statistics.median(slower.values()):.0%} (median), at most by {slower[worst]:.0%} "
            f"({worst.name})"
        )
    return text + "."


def render(rows: Sequence[Planned], kept: str, picture: str) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    slow = [row for row in rows if row.cell.cluster in SLOW]
    lines = [
        "# Throughput on clusters",
        "",
        f"`python -m bench.throughput`: {len(rows)} of its {CELLS} cells, each by",
        "",
        *(f"- {made}: {count}" for made, count in Counter(row.made for row in rows).items()),
        "",
        f"Models of size `small` with {sizes}; two processes. Milliseconds of a full step, in turn "
        "in one run; the fastest in bold, and with `=` what may be as fast; `none`: does not run "
        "there, such as a batch of 4 in 8 parts. Steps per second and TFLOP/s (of the model, over "
        "all devices) are CFP's. Intervals and reasons are in "
        f"[{kept}]({kept}).",
        "",
    ]
    for cluster in dict.fromkeys(row.cell.cluster for row in rows):
        lines.append(f"- `{cluster}`: {read_spec(cluster).description}")
    lines += [
        "",
        f"CFP is the best or ties with it in {sum(map(best_or_tied, rows))} of {len(rows)} cells. "
        + behind(rows),
    ]
    if slow:
        lines.append(
            f"Over Alpa, on the slow networks ({len(slow)} cells), it is "
            f"{mean_speedup(slow, 'alpa')}x as fast (geometric mean)."
        )
    lines += [
        "",
        "How many times as fast CFP's plan is, geometric means over models and batches:",
        "",
        "| cluster | mesh | cells | data parallel | Megatron | ZeRO-1 | FSDP | Alpa |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (cluster, mesh), some in by_panel(rows).items():
        means = " | ".join(mean_speedup(some, name) for name in NAMES if name != CFP)
        lines.append(f"| {cluster} | {mesh} | {len(some)} | {means} |")
    lines += [
        "",
        f"![steps per second]({picture})",
        "",
        "| cluster | mesh | model | batch | data parallel | Megatron | ZeRO-1 | FSDP | Alpa | CFP "
        "| predicted | steps/s | TFLOP/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cell, own = row.cell, row.steps[CFP]
        times = " | ".join(_time(row, name) for name in NAMES)
        lines.append(
            f"| {cell.cluster} | {cell.mesh} | {cell.model} | {cell.batch} | {times} | "
            f"{row.predicted_s * 1e3:.0f} | {1 / own.time_s:.2f} | "
            f"{cell.flops() / own.time_s / 1e12:.4f} |"
        )
    lines += [
        "",
        "## The plans chosen",
        "",
        "The share of the weights that a device has: 1 in data parallel; where it is less they "
        "are split, as in tensor parallel.",
        *changes(rows),
        "",
        "| cluster | mesh | model | batch | weights | segments: splits by block | programs "
        "| planned in s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cell = row.cell
        lines.append(
            f"| {cell.cluster} | {cell.mesh} | {cell.model} | {cell.batch} | {row.held:.2f} | "
            f"{row.splits} | {row.programs} | {row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def changes(rows: Sequence[Planned]) -> list[str]:
    """Where the plan is another one because the batch or the network is."""
    found = {row.cell: row for row in rows}
    with_batch = _changing(rows, lambda cell: (cell.cluster, cell.mesh, cell.model))
    with_network = _changing(rows, lambda cell: (cell.mesh, cell.model, cell.batch))
    lines = [
        f"With the batch the plan changes in {with_batch}; with the network in {with_network}.",
        "",
        "| mesh | model | batch | " + " | ".join(CLUSTERS) + " |",
        "|---" * (3 + len(CLUSTERS)) + "|",
    ]
    for mesh, model, batch in itertools.product(MESHES, MODELS, BATCHES):
        cells = [found.get(Cell(model, batch, cluster, mesh)) for cluster in CLUSTERS]
        if any(cells):
            held = " | ".join("" if row is None else f"{row.held:.2f}" for row in cells)
            lines.append(f"| {mesh} | {model} | {batch} | {held} |")
    return lines


def _changing(rows: Sequence[Planned], case: Callable[[Cell], Hashable]) -> str:
    """In how many cases, of those with several cells, the plans differ."""
    plans: dict[Hashable, list[str]] = {}
    for row in rows:
        plans.setdefault(case(row.cell), []).append(row.splits)
    several = [some for some in plans.values() if len(some) > 1]
    return f"{sum(len(set(some)) > 1 for some in several)} of {len(several)} cases"


def _time(row: Planned, name: str) -> str:
    step = row.steps.get(name)
    if step is None or step.failed is not None:
        return "none"
    text = f"{step.time_s * 1e3:.0f}"
    if name == row.best:
        return f"**{text}**"
    return f"{text} =" if row.ties(name, row.best) else text


def draw(rows: Sequence[Planned], path: Path) -> None:
    """Steps per second to the fastest's, a panel for each cluster and mesh."""
    panels = by_panel(rows)
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(11, 2.6 * len(panels)), squeeze=False, layout="constrained"
    )
    for axis, (panel, some) in zip(axes[:, 0], panels.items(), strict=True):
        for i, name in enumerate(NAMES):
            heights = []
            for row in some:
                step = row.steps.get(name)
                ran = step is not None and step.failed is None
                best_s = row.steps[row.best].time_s
                heights.append(best_s / step.time_s if step is not None and ran else 0.0)
            at = [x + (i - len(NAMES) / 2) * 0.13 for x in range(len(some))]
            axis.bar(at, heights, width=0.12, label=name)
        axis.set_xticks(range(len(some)), [f"{r.cell.model}\n{r.cell.batch}" for r in some])
        axis.axhline(1.0, color="grey", linewidth=0.6)
        axis.set_title(f"{panel[0]}, mesh {panel[1]}", fontsize=10)
        axis.set_ylabel("steps/s to\nthe fastest's", fontsize=8)
    named = axes[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside upper center", ncols=len(NAMES), fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
