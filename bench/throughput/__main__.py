from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import bench.throughput
from bench.cluster.spec import SpecError, read_spec
from bench.clustered import BATCHES, CLUSTERS, MESHES, MODELS, Cell, plan_cell
from bench.throughput.picture import draw
from bench.throughput.rows import order, read_rows, write_rows
from bench.throughput.table import render
from bench.throughput.targets import targets

OUT = Path(__file__).parents[1] / "results" / "throughput.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=(bench.throughput.__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument("--meshes", nargs="+", default=list(MESHES))
    parser.add_argument("--budget", help="of each plan, such as 3m [default: none]")
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "clusters")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    try:
        for cluster in options.clusters:
            read_spec(cluster)
    except SpecError as error:
        parser.error(str(error))
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
    rows = sorted(found.values(), key=order)
    picture = options.out.with_suffix(".png")
    options.out.write_text(render(rows, kept.name, picture.name))
    draw(rows, picture)
    print(options.out.read_text())
    if missed := [target for target in targets(rows) if not target.met]:
        sys.exit("\n".join(f"missed: {target.what}: {target.found}" for target in missed))


if __name__ == "__main__":
    main()
