"""Is the prediction right? Predicted against measured full steps, plan by plan.

For each model its segments are profiled on 4 virtual CPU devices. Then `--plans` plans are drawn
from what was measured: the planner's own, plans with all layers alike, and plans in which every
layer is split in its own way. Each is predicted from the segments, priced by Alpa's volume formula
(`estimate_alpa`), and run as a full step, in turn with others.

    error     |predicted / measured - 1|
    tau       Kendall's rank correlation with the measured full steps; 1 is the same order. The
              second figure is over pairs that differ by more than 5 % when measured: nobody can
              order the others

`python -m bench.prediction` writes bench/results/prediction.md. Stopped, it goes on where it was
(`--store`). For times worth keeping run it on an otherwise idle machine. With `--cluster` it is
measured as the processes of a test cluster instead (`bench.cluster`, which needs root), where the
network decides and runs differ little.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import clustered
from bench.cluster.spec import read_spec
from bench.clustered import joined, run_inside
from bench.environment import made_by
from bench.planned import LAYERS, MODELS, SHAPE, Bench, Case, make_case
from bench.rank import kendall
from cfp.blocks.feedback import find_feedback
from cfp.cluster import Team
from cfp.profile.runners.shared_decision import decide_together
from cfp.search import Point
from cfp.templates.alpa_ilp import estimate_alpa

OUT = Path(__file__).parent / "results" / "prediction.md"
PLANS = 30
BATCH = 8
MESH = (4,)
APART = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    splits: str
    predicted_s: float
    measured_s: float
    volume: float
    predicted_bytes: int
    compiled_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--plans", type=int, default=PLANS)
    parser.add_argument("--wave", type=int, default=4, help="programs compiled at once")
    parser.add_argument("--cluster", help="such as slow_200mbit [default: one process]")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # the cluster's processes
    options = parser.parse_args()
    store = options.store.absolute()
    if options.inside:
        inside(options.models[0], store, options.plans, options.wave, options.inside)
        return
    found: dict[str, list[Row]] = {}
    out = options.out or OUT.with_stem("_".join(filter(None, [OUT.stem, options.cluster])))
    for model in options.models:
        if options.cluster is None:
            case = make_case(model, BATCH, MESH)
            found[model] = run(case, store, options.plans, options.wave)
        else:
            words = ["--models", model, "--store", str(store), "--plans", str(options.plans)]
            file = store / "clusters" / "prediction" / f"{options.cluster}-{model}.json"
            rows = run_inside(options.cluster, "bench.prediction", words, file)
            if rows is None:
                continue
            found[model] = [Row(**row) for row in rows]
        out.write_text(render(found, options.cluster))
    print(out.read_text())


def inside(model: str, store: Path, plans: int, wave: int, file: Path) -> None:
    """Runs as one process of a cluster; process 0 decides, and writes."""
    with joined(math.prod(MESH)) as team:
        shape: dict[str, Any] = clustered.SHAPE
        case = make_case(model, BATCH, MESH, **shape)

        def decide(team: Team | None) -> None:
            rows = run(case, store / "clusters", plans, wave, team)
            file.write_text(json.dumps([asdict(row) for row in rows]))

        decide_together(case.mesh, team, None, decide, pack=lambda _: b"", unpack=lambda _: None)


def run(case: Case, store: Path, plans: int, wave: int, team: Team | None = None) -> list[Row]:
    graph, blocks = case.analysis.graph, case.analysis.grouping
    feedback = find_feedback(graph, blocks.parameters)
    rows = []
    with Bench(case, store, wave, team) as bench:
        points = draw(bench, plans)
        for point, (plan, measured) in zip(points, bench.full_steps(points), strict=True):
            if measured.failed is not None or measured.memory is None:
                raise RuntimeError(f"{bench.proposals.show(point)}: {measured.failed}")
            assert plan.predicted is not None  # it comes from proposals, which predict
            layouts = plan.known("bench").layouts
            rows.append(
                Row(
                    bench.proposals.show(point),
                    plan.predicted.time_s,
                    measured.usual_s,
                    estimate_alpa(
                        graph, MESH, layouts, parameters=blocks.parameters, feedback=feedback
                    ),
                    plan.predicted.memory_bytes,
                    measured.memory.total_bytes,
                )
            )
    return rows


def draw(bench: Bench, count: int) -> list[Point]:
    """Returns points, all different and all possible: the planner's best, half with alike segments,
    the rest mixed."""
    random_ = random.Random(0)
    kinds = range(len(bench.profile.segments))
    fastest = bench.proposals.solver.fastest(None)
    assert fastest is not None
    found = {fastest.plan.choice: fastest.plan}
    tries = itertools.count()
    while len(found) < count and next(tries) < 100 * count:
        if len(found) % 2:
            choice = bench.alike([random_.choice(bench.options(kind)) for kind in kinds])
        else:
            of_nodes = bench.proposals.composition.kinds
            choice = tuple(random_.choice(bench.options(kind)) for kind in of_nodes)
        point = bench.point(choice)
        if point.time_s < float("inf"):
            found.setdefault(choice, point)
    return list(found.values())


def render(found: dict[str, list[Row]], cluster: str | None) -> str:
    shape = SHAPE if cluster is None else clustered.SHAPE
    depth = f"{LAYERS} layers (MoE {LAYERS + 1}), " if cluster is None else ""
    sizes = ", ".join(f"{name} {value}" for name, value in shape.items())
    where = "4 virtual CPU devices"
    if cluster is not None:
        where += f" on `{cluster}`: {read_spec(cluster).description}"
    lines = [
        "# Predicted against measured full steps",
        "",
        made_by("bench.prediction"),
        "",
        f"Models of size `small` with {depth}{sizes}, batch {BATCH}; {where}. Taus in brackets are "
        f"over pairs more than {APART:.0%} apart.",
        "",
        "| model | plans | slowest / fastest | median error | worst error | tau, predicted "
        "| tau, Alpa's volume | memory: median error | worst |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, rows in found.items():
        measured = [row.measured_s for row in rows]
        errors = [abs(row.predicted_s / row.measured_s - 1) for row in rows]
        memory = [abs(row.predicted_bytes / row.compiled_bytes - 1) for row in rows]
        taus = [
            f"{kendall(xs, measured):.2f} ({kendall(xs, measured, APART):.2f})"
            for xs in ([r.predicted_s for r in rows], [r.volume for r in rows])
        ]
        lines.append(
            f"| {model} | {len(rows)} | {max(measured) / min(measured):.1f} | "
            f"{statistics.median(errors):.1%} | {max(errors):.1%} | {taus[0]} | {taus[1]} | "
            f"{statistics.median(memory):.1%} | {max(memory):.1%} |"
        )
    for model, rows in found.items():
        lines += [
            "",
            f"## {model}",
            "",
            "| plan (segments: splits by block) | predicted ms | measured ms | error "
            "| Alpa's volume (millions) | memory MiB, predicted | compiled |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in sorted(rows, key=lambda row: row.measured_s):
            lines.append(
                f"| {row.splits} | {row.predicted_s * 1e3:.1f} | {row.measured_s * 1e3:.1f} | "
                f"{row.predicted_s / row.measured_s - 1:+.1%} | {row.volume / 1e6:.2f} | "
                f"{row.predicted_bytes / 2**20:.1f} | {row.compiled_bytes / 2**20:.1f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
