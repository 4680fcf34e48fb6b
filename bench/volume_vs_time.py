"""Alpa's volume against measured communication: the paper's discrepancy figure.

All ways to split a model with its layers alike are priced by Alpa's volume formula
(`estimate_alpa`). The `--top` cheapest run as full steps, in turn, as the processes of a cluster,
and CFP's plan with them; beside each stands the communication time that the profiler shows.
Were the formula right, both would order the plans alike (Kendall's tau 1).

`python -m bench.volume_vs_time` writes bench/results/volume_vs_time.md. It needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.cluster.spec import read_spec
from bench.clustered import CFP, SHAPE, Cell, add_cell_options, joined, plan_cell, run_inside
from bench.environment import made_by, told
from bench.rank import kendall
from cfp import Plan, analyze, compare, load
from cfp.blocks.feedback import find_feedback
from cfp.devices import make_mesh
from cfp.plan.assemble import assemble_plan
from cfp.profile import Option
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.templates.alpa_ilp import estimate_alpa

OUT = Path(__file__).parent / "results" / "volume_vs_time.md"
TOP, ROUNDS = 20, 6
SAMPLE = 120  # ways that are priced: each is an integer program


@dataclass(frozen=True, slots=True)
class Row:
    """A plan, by how its segments are split; CFP's has no volume."""

    splits: str
    volume: float
    time_s: float
    communication_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cell_options(parser, ("gpt", "llama"), OUT)
    parser.add_argument("--top", type=int, default=TOP)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # the cluster's processes
    options = parser.parse_args()
    store = options.store.absolute()
    found: dict[str, list[Row]] = {}
    for model in options.models:
        cell = Cell(model, options.batch, options.cluster, options.mesh)
        if options.inside:
            inside(cell, options.top, store, options.inside)
            return
        if rows := measure(cell, options.top, store):
            found[model] = rows
            options.out.write_text(render(found, options.cluster, options.mesh, options.batch))
    print(options.out.read_text())


def measure(cell: Cell, top: int, store: Path) -> list[Row]:
    """Returns the rows of a model on its cluster, unless that was done before; nothing where it
    fails, which is printed."""
    if plan_cell(cell, store) is None:
        return []
    where = ["--cluster", cell.cluster, "--mesh", cell.mesh, "--batch", str(cell.batch)]
    words = ["--models", cell.model, *where, "--store", str(store), "--top", str(top)]
    file = store / "volume" / f"{cell.name}.json"
    found = run_inside(cell.cluster, "bench.volume_vs_time", words, file)
    return [Row(**row) for row in found or []]


def inside(cell: Cell, top: int, store: Path, file: Path) -> None:
    """Runs as one process of the cluster: all make the same plans, process 0 writes."""
    with joined(math.prod(cell.mesh_shape)) as team:
        mesh = make_mesh(cell.mesh_shape, "cpu")
        step, args = cell.step()
        priced = cheapest(step, args, mesh, top)
        plans = {f"{i}": plan for i, (_, _, plan) in enumerate(priced)}
        ours = load(store / "plans" / f"{cell.name}.json", mesh=mesh)
        result = compare(
            step, *args, mesh=mesh, plans={**plans, CFP: ours}, rounds=ROUNDS, team=team
        )
        if not team.leads:
            return
        rows = []
        for one in result.plans:
            volume, splits, _ = (0.0, CFP, None) if one.name == CFP else priced[int(one.name)]
            if one.failed is None:
                rows.append(Row(splits, volume, one.time_s, told(one.communication_s)))
        file.write_text(json.dumps([asdict(row) for row in rows]))


def cheapest(step: Any, args: Any, mesh: Any, top: int) -> list[tuple[float, str, Plan]]:
    """Returns volume, splits and plan of the ways that Alpa's formula finds cheapest."""
    analysis = analyze(step, *args, mesh_shape=mesh.devices.shape)
    kinds = find_kinds(analysis)
    interfaces = find_interfaces(analysis, kinds)
    graph, parameters = analysis.graph, analysis.grouping.parameters
    feedback = find_feedback(graph, parameters)
    of = [segment.kind for segment in analysis.segments]
    ways = list(
        itertools.product(
            *(itertools.product(*(range(len(c)) for c in kind.strategies)) for kind in kinds)
        )
    )
    drawn = random.Random(0).sample(ways, min(SAMPLE, len(ways)))
    found = []
    for way in drawn:
        options = [Option(way[kind]) for kind in of]
        plan = assemble_plan(step, analysis, mesh, interfaces, options, name="way")
        volume = estimate_alpa(
            graph,
            mesh.devices.shape,
            plan.known("bench").layouts,
            parameters=parameters,
            feedback=feedback,
        )
        splits = "; ".join(kind.show(Option(way[kind.index])) for kind in kinds)
        found.append((volume, splits, plan))
    return sorted(found, key=lambda one: one[0])[:top]


def render(found: dict[str, list[Row]], cluster: str, mesh: str, batch: int) -> str:
    lines = [
        "# Alpa's volume against measured communication",
        "",
        made_by("bench.volume_vs_time"),
        "",
        f"Cluster `{cluster}` ({read_spec(cluster).description}), mesh {mesh}, batch {batch}, "
        f"size `small` with {', '.join(f'{k} {v}' for k, v in SHAPE.items())}. Of {SAMPLE} ways "
        "drawn at random, layers alike, those that Alpa's formula finds cheapest.",
        "",
        "| model | plans | tau: volume, communication | tau: volume, step | slowest / fastest step "
        "| the cheapest to the fastest | CFP's plan to the fastest |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, every in found.items():
        rows = [row for row in every if row.splits != CFP]
        (ours,) = (row for row in every if row.splits == CFP)
        volumes = [row.volume for row in rows]
        steps = [row.time_s for row in rows]
        talks = [row.communication_s for row in rows]
        first = min(rows, key=lambda row: row.volume)
        lines.append(
            f"| {model} | {len(rows)} | {kendall(volumes, talks):.2f} | "
            f"{kendall(volumes, steps):.2f} | {max(steps) / min(steps):.1f} | "
            f"{first.time_s / min(steps):.2f} | {ours.time_s / min(steps):.2f} |"
        )
    for model, every in found.items():
        lines += [
            "",
            f"## {model}",
            "",
            "| volume (millions) | communication ms | step ms | splits: embedding; layer; head |",
            "|---|---|---|---|",
        ]
        for row in sorted(every, key=lambda row: row.volume):
            volume = "" if row.splits == CFP else f"{row.volume / 1e6:.2f}"
            lines.append(
                f"| {volume} | {row.communication_s * 1e3:.0f} | {row.time_s * 1e3:.0f} | "
                f"{row.splits} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
