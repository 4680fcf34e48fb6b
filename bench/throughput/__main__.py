from __future__ import annotations

import argparse
import os
import sys
from itertools import product
from pathlib import Path

import bench.throughput
from bench.cluster.spec import SpecError, read_spec
from bench.clustered import BATCHES, CLUSTERS, MESHES, MODELS, Cell, measure_cell
from bench.throughput.picture import draw
from bench.throughput.rows import order, read_rows, write_rows
from bench.throughput.table import render
from bench.throughput.targets import targets

OUT = Path(__file__).parents[1] / "results" / "throughput.md"
SAMPLE_OUT = OUT.with_stem("throughput_sample")
# Both slow networks, one axis and two, every model once on each network and on each number of axes:
# set down before any of them was run again.
SAMPLE = (
    Cell("bert", 4, "slow_200mbit", "4"),
    Cell("moe", 8, "slow_200mbit", "4"),
    Cell("gpt", 16, "slow_200mbit", "2x2"),
    Cell("llama", 8, "slow_200mbit", "2x2"),
    Cell("gpt", 4, "two_hosts_200mbit", "4"),
    Cell("llama", 16, "two_hosts_200mbit", "4"),
    Cell("bert", 8, "two_hosts_200mbit", "2x2"),
    Cell("moe", 4, "two_hosts_200mbit", "2x2"),
)
SAMPLE_BUDGET = "140s"  # of each plan: with fresh rounds, 40 to 160 s, all 8 take 35 minutes
# Most of the time of planning on a CPU is the compiler's; all cells were made so.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(bench.throughput.__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument("--meshes", nargs="+", default=list(MESHES))
    parser.add_argument(
        "--sample", action="store_true", help=f"{len(SAMPLE)} cells, into {SAMPLE_OUT.name}"
    )
    parser.add_argument("--budget", help="of each plan, such as 3m [default: none; sample: 140s]")
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "fresh")
    parser.add_argument(
        "--out", type=Path, help=f"[default: {OUT.name}; sample: {SAMPLE_OUT.name}]"
    )
    options = parser.parse_args()
    try:
        for cluster in options.clusters:
            read_spec(cluster)
    except SpecError as error:
        parser.error(str(error))
    os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
    parts = (options.clusters, options.meshes, options.models, options.batches)
    wanted = [Cell(model, batch, cluster, mesh) for cluster, mesh, model, batch in product(*parts)]
    if options.sample:
        wanted = [cell for cell in SAMPLE if cell in wanted]
    out = options.out or (SAMPLE_OUT if options.sample else OUT)
    budget = options.budget or (SAMPLE_BUDGET if options.sample else None)
    kept = out.with_suffix(".json")
    found = read_rows(kept)
    for cell in wanted:
        if cell in found:
            continue
        planned = measure_cell(cell, options.store.absolute(), budget)
        if planned is not None:
            found[cell] = planned
            write_rows(kept, found)
    rows = sorted(found.values(), key=order)
    if not rows:
        sys.exit("No cell was made: see above why.")
    picture = out.with_suffix(".png")
    out.write_text(render(rows, kept.name, picture.name, sample=options.sample))
    draw(rows, picture)
    print(out.read_text())
    if missed := [target for target in targets(rows) if not target.met]:
        sys.exit("\n".join(f"missed: {target.what}: {target.found}" for target in missed))


if __name__ == "__main__":
    main()
