"""The text: what is true of all cells, each cell's times, and the plans chosen."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence

from bench.cluster.spec import read_spec
from bench.clustered import BATCHES, CFP, CLUSTERS, MESHES, MODELS, NAMES, SHAPE, Cell, Planned
from bench.throughput.rows import behind, by_panel, mean_speedup
from bench.throughput.targets import targets

CELLS = math.prod(map(len, (MODELS, BATCHES, CLUSTERS, MESHES)))


def render(rows: Sequence[Planned], kept: str, picture: str) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    made_by = Counter(row.made for row in rows)
    lines = [
        "# Throughput on clusters",
        "",
        f"`python -m bench.throughput`: {len(rows)} of its {CELLS} cells, each by",
        "",
        *(f"- {made}: {count}" for made, count in sorted(made_by.items())),
        "",
        f"Models of size `small` with {sizes}; two processes. Milliseconds of a full step, in turn "
        "in one run; the fastest in bold, and with `=` what may be as fast: 1 is in the 95 % "
        "interval of their ratio, round by round" + _without_runs(rows) + ". `none`: does not run "
        "there, such as a batch of 4 in 8 parts. Steps per second and TFLOP/s (of the model, over "
        f"all devices) are CFP's. Intervals, runs and reasons are in [{kept}]({kept}).",
        "",
    ]
    for cluster in dict.fromkeys(row.cell.cluster for row in rows):
        lines.append(f"- `{cluster}`: {read_spec(cluster).description}")
    lines += ["", "| target | met | found |", "|---|---|---|"]
    for target in targets(rows):
        lines.append(f"| {target.what} | {'yes' if target.met else '**no**'} | {target.found} |")
    lines += ["", by_medians(rows)]
    lines += [
        "",
        "How many times as fast CFP's plan is, geometric means over models and batches:",
        "",
        "| cluster | mesh | cells | data parallel | Megatron | ZeRO-1 | FSDP | Alpa |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (cluster, mesh), some in by_panel(rows).items():
        means = " | ".join(_mean(some, name) for name in NAMES if name != CFP)
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
        "",
        *weights_held(rows),
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


def _without_runs(rows: Sequence[Planned]) -> str:
    old = sum(not row.steps[CFP].runs_s for row in rows)
    return f" (in {old} cells runs were not kept, and nothing is marked)" if old else ""


def by_medians(rows: Sequence[Planned]) -> str:
    """How often, and how far, another is faster if intervals do not count."""
    slower = {row.cell.name: by for row in rows if (by := behind(row)) > 0}
    text = f"By the medians alone CFP is the fastest in {len(rows) - len(slower)} cells"
    if slower:
        worst = max(slower, key=lambda name: slower[name])
        text += (
            f"; in the other {len(slower)} the fastest is ahead by "
            f"{statistics.median(slower.values()):.0%} (median), at most by {slower[worst]:.0%} "
            f"({worst})"
        )
    return text + "."


def weights_held(rows: Sequence[Planned]) -> list[str]:
    """Side by side for the networks."""
    found = {row.cell: row for row in rows}
    lines = [
        "| mesh | model | batch | " + " | ".join(CLUSTERS) + " |",
        "|---" * (3 + len(CLUSTERS)) + "|",
    ]
    for mesh, model, batch in itertools.product(MESHES, MODELS, BATCHES):
        cells = [found.get(Cell(model, batch, cluster, mesh)) for cluster in CLUSTERS]
        if any(cells):
            held = " | ".join("" if row is None else f"{row.held:.2f}" for row in cells)
            lines.append(f"| {mesh} | {model} | {batch} | {held} |")
    return lines


def _mean(rows: Sequence[Planned], over: str) -> str:
    found = mean_speedup(rows, over)
    return "none" if found is None else f"{found:.2f}"


def _time(row: Planned, name: str) -> str:
    step = row.steps.get(name)
    if step is None or step.failed is not None:
        return "none"
    text = f"{step.time_s * 1e3:.0f}"
    if name == row.best:
        return f"**{text}**"
    return f"{text} =" if row.ties(name, row.best) else text
