"""Alpa's volume against measured communication: the paper's discrepancy figure.

All ways to split a model with its layers alike are priced by Alpa's volume formula
(`estimate_alpa`). The `--top` cheapest run as full steps, in turn, as the processes of a cluster;
beside each stands the communication time that the profiler's trace shows. Were the formula right,
both would order the plans alike (Kendall's tau 1).

`python -m bench.volume_vs_time` writes bench/results/volume_vs_time.md. It needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.clustered import SHAPE
from bench.environment import made_by
from bench.rank import kendall
from cfp import Plan, analyze, compare
from cfp.blocks.pairs import find_pairs
from cfp.cli_cluster import VARIABLES
from cfp.cluster.join import Membership
from cfp.devices import make_mesh
from cfp.models import config, make_step
from cfp.plan.assemble import assemble_plan
from cfp.profile import Option
from cfp.profile.kinds import find_kinds
from cfp.templates.alpa_ilp import estimate_alpa

OUT = Path(__file__).parent / "results" / "volume_vs_time.md"
TOP, ROUNDS, BATCH, DEVICES = 20, 5, 4, 4
SAMPLE = 120  # ways that are priced: each is an integer program


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["gpt", "llama"])
    parser.add_argument("--cluster", default="slow_200mbit")
    parser.add_argument("--top", type=int, default=TOP)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # what the cluster's processes run
    options = parser.parse_args()
    if options.inside:
        inside(options.models[0], options.top, Path(options.inside))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for model in options.models:
        file = Path(".bench_store", "clusters", f"volume-{options.cluster}-{model}.json").absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "bench.volume_vs_time", "--models", model]
        if not file.exists() and run(
            read_spec(options.cluster),
            [*command, "--top", str(options.top), "--inside", str(file)],
        ):
            continue
        found[model] = json.loads(file.read_text())
        options.out.write_text(render(found, options.cluster))
    print(options.out.read_text())


def inside(model: str, top: int, file: Path) -> None:
    """One process of the cluster: all make the same plans, process 0 writes."""
    address, count, index = (os.environ[name] for name in VARIABLES)
    with Membership(address, int(count), int(index)).joined(DEVICES, "cpu") as team:
        mesh = make_mesh((DEVICES,), "cpu")
        step, args = make_step(config(model, "small", batch=BATCH, **SHAPE), abstract=True)
        priced = cheapest(step, args, mesh, top)
        plans = {f"{i}": plan for i, (_, _, plan) in enumerate(priced)}
        result = compare(step, *args, mesh=mesh, plans=plans, rounds=ROUNDS, team=team)
        if team is None or not team.leads:
            return
        rows = []
        for one in result.plans:
            volume, splits, _ = priced[int(one.name)]
            if one.failed is None:
                rows.append(
                    {
                        "splits": splits,
                        "volume": volume,
                        "time_s": one.time_s,
                        "communication_s": one.communication_s,
                    }
                )
        file.write_text(json.dumps(rows))


def cheapest(step: Any, args: Any, mesh: Any, top: int) -> list[tuple[float, str, Plan]]:
    """Volume, splits and plan of the ways that Alpa's formula finds cheapest."""
    analysis = analyze(step, *args, mesh_shape=mesh.devices.shape)
    kinds = find_kinds(analysis)
    graph, parameters = analysis.graph, analysis.grouping.parameters
    pairs = find_pairs(graph, parameters)
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
        plan = assemble_plan(
            step, analysis, mesh, kinds, options, name="way", pins={}, sequence=False
        )
        volume = estimate_alpa(
            graph,
            mesh.devices.shape,
            plan.known("bench").layouts,
            parameters=parameters,
            pairs=pairs,
        )
        splits = "; ".join(kind.show(Option(way[kind.index])) for kind in kinds)
        found.append((volume, splits, plan))
    return sorted(found, key=lambda one: one[0])[:top]


def render(found: dict[str, list[dict[str, Any]]], cluster: str) -> str:
    lines = [
        "# Alpa's volume against measured communication",
        "",
        made_by("bench.volume_vs_time"),
        "",
        f"Cluster `{cluster}` ({read_spec(cluster).description}), mesh {DEVICES}, batch {BATCH}, "
        f"size `small` with {', '.join(f'{k} {v}' for k, v in SHAPE.items())}. Of {SAMPLE} ways "
        "drawn at random, layers alike, those that Alpa's formula finds cheapest.",
        "",
        "| model | plans | tau: volume, communication | tau: volume, step | slowest / fastest step "
        "| of the cheapest |",
        "|---|---|---|---|---|---|",
    ]
    for model, rows in found.items():
        volumes = [row["volume"] for row in rows]
        steps = [row["time_s"] for row in rows]
        talks = [row["communication_s"] or 0.0 for row in rows]
        first = min(rows, key=lambda row: row["volume"])
        lines.append(
            f"| {model} | {len(rows)} | {kendall(volumes, talks):.2f} | "
            f"{kendall(volumes, steps):.2f} | {max(steps) / min(steps):.1f} | "
            f"{first['time_s'] / min(steps):.2f}x the fastest |"
        )
    for model, rows in found.items():
        lines += [
            "",
            f"## {model}",
            "",
            "| volume (millions) | communication ms | step ms | splits: embedding; layer; head |",
            "|---|---|---|---|",
        ]
        for row in sorted(rows, key=lambda row: row["volume"]):
            lines.append(
                f"| {row['volume'] / 1e6:.2f} | {(row['communication_s'] or 0) * 1e3:.0f} | "
                f"{row['time_s'] * 1e3:.0f} | {row['splits']} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
