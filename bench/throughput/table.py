"""The text: what is true of all cells, each cell's times, and the plans chosen."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence

from bench.cluster.spec import read_spec
from bench.clustered import (
    BATCHES,
    CFP,
    CHOSEN_BY,
    CLUSTERS,
    FRESH,
    MESHES,
    MODELS,
    NAMES,
    SHAPE,
    Cell,
    Planned,
)
from bench.throughput.rows import behind, by_panel, in_words, mean_speedup, old_tie, verdicts
from bench.throughput.targets import targets

CELLS = math.prod(map(len, (MODELS, BATCHES, CLUSTERS, MESHES)))


def render(rows: Sequence[Planned], kept: str, picture: str, *, sample: bool = False) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    made_by = Counter(row.made for row in rows)
    command = "python -m bench.throughput" + (" --sample" if sample else "")
    lines = [
        "# Throughput on clusters" + (": a sample" if sample else ""),
        "",
        f"`{command}`: {len(rows)} of {CELLS} cells, each by",
        "",
        *(f"- {made}: {count}" for made, count in sorted(made_by.items())),
        "",
        *rules(rows),
        f"Models of size `small` with {sizes}; two processes. Milliseconds of a full step, in turn "
        "in one run; the fastest in bold. `none`: does not run there, such as a batch of 4 in 8 "
        "parts. Steps per second and TFLOP/s (of the model, over all devices) are CFP's. "
        f"Intervals, runs and reasons are in [{kept}]({kept}).",
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
        "| CFP to the best other | predicted | steps/s | TFLOP/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cell, own = row.cell, row.steps[CFP]
        times = " | ".join(_time(row, name) for name in NAMES)
        lines.append(
            f"| {cell.cluster} | {cell.mesh} | {cell.model} | {cell.batch} | {times} | "
            f"{_beside(row)} | {row.predicted_s * 1e3:.0f} | {1 / own.time_s:.2f} | "
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


def rules(rows: Sequence[Planned]) -> list[str]:
    """Returns what the times are of, and what the marks mean."""
    old = [row for row in rows if row.rule == CHOSEN_BY]
    fresh = [row for row in rows if row.rule == FRESH]
    lines = []
    if old:
        without = sum(not row.steps[CFP].runs_s for row in old)
        lines += [
            f"**{len(old)} cells are of the old rule.** CFP's time is the best of up to three "
            "plans in the very rounds that are shown, 3 to 13 of them, which flatters it by about "
            "3 %; each template has one draw. `=` marks what may be as fast as the fastest (1 is "
            "in the 95 % interval of their ratio, round by round), which so few rounds seldom rule "
            "out; "
            f"in {without} cells runs were not kept, and nothing is marked. By the rule of today, "
            "where a tie must be shown, the same rounds say that CFP's plan, beside the fastest "
            f"template, is {in_words(verdicts(old))}.",
            "",
        ]
    if fresh:
        rounds = min(
            len(step.runs_s) for row in fresh for step in row.steps.values() if step.runs_s
        )
        lines += [
            f"**{len(fresh)} cells are of fresh rounds**: {rounds} or more that had no part in "
            "choosing the plan. `CFP to the best other` is the ratio of its time to the fastest "
            "template's, by the median of the rounds, with an interval each end of which is wrong "
            "one time in twenty. `faster` and `slower` exclude 1; a `tie` is shown to be within "
            "5 % (two one-sided tests); else they are `not told apart`.",
            "",
        ]
    return lines


def by_medians(rows: Sequence[Planned]) -> str:
    """Returns how often, and how far, another is faster if intervals do not count."""
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
    """Returns the shares of the weights, side by side for the networks."""
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
    return f"{text} =" if row.rule == CHOSEN_BY and old_tie(row, name) else text


def _beside(row: Planned) -> str:
    if row.rule == CHOSEN_BY:
        return "old rule"
    if row.best_other is None:
        return "no other runs"
    found = row.judge(CFP, row.best_other)
    return f"{found.ratio:.3f} ({found.low:.3f}-{found.high:.3f}) {found.verdict}"
