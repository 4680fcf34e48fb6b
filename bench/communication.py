"""Communication of each framework's plan: its time, and the bandwidth it achieves.

For every model, on a cluster: the plans that `bench.throughput` made and the templates, measured in
turn by `cfp compare` as the cluster's processes. Communication is what the profiler shows
of a step on an average device, transfer and waiting. Bytes are those that one device must send for
the collectives of the compiled program, by the ring algorithm; their quotient is the bandwidth.

`python -m bench.communication` writes bench/results/communication.md. It needs root.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cluster.spec import read_spec
from bench.clustered import (
    CFP,
    MODELS,
    NAMES,
    SHAPE,
    Cell,
    add_cell_options,
    compare_cell,
    plan_cell,
)
from bench.environment import made_by, told
from cfp import Plan, load, templates
from cfp.devices import make_mesh

OUT = Path(__file__).parent / "results" / "communication.md"


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    plan: str
    time_s: float
    communication_s: float
    sent_bytes: float
    collectives: dict[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cell_options(parser, MODELS, OUT)
    options = parser.parse_args()
    rows: list[Row] = []
    for model in options.models:
        cell = Cell(model, options.batch, options.cluster, options.mesh)
        rows += measure(cell, options.store.absolute())
        options.out.write_text(render(rows, options.cluster, options.mesh, options.batch))
    print(options.out.read_text())


def measure(cell: Cell, store: Path) -> list[Row]:
    """Returns the plans of a cell, compared there; the results are kept in the store."""
    ours = plan_cell(cell, store)
    compared = None if ours is None else compare_cell(cell, ours, store)
    if ours is None or compared is None:
        return []
    made = plans_of(cell, ours)
    return [
        Row(
            cell.model,
            name,
            compared[name]["time_s"],
            told(compared[name]["communication_s"]),
            sent_bytes(made[name]),
            counts(made[name]),
        )
        for name in NAMES
        if compared[name]["failed"] is None
    ]


def plans_of(cell: Cell, ours: Path) -> dict[str, Plan]:
    """Returns the plans by name, on virtual devices: the compiler makes the same of them."""
    mesh = make_mesh(cell.mesh_shape, "cpu")
    step, args = cell.step()
    found = {
        name: getattr(templates, name)(step, *args, mesh=mesh) for name in NAMES if name != CFP
    }
    return {**found, CFP: load(ours, mesh=mesh).bind(step, *args)}


def sent_bytes(plan: Plan) -> float:
    """Returns the bytes that one device sends in one step."""
    sizes: dict[Any, int] = dict(plan.mesh.shape)
    total = 0.0
    for one in plan.collectives():
        n = math.prod(sizes[axis] for axis in one.axes) if one.axes else plan.mesh.size
        share = {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1.0}.get(
            one.kind, (n - 1) / n
        )
        total += share * one.bytes * one.times
    return total


def counts(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in plan.collectives():
        found[one.kind] = found.get(one.kind, 0) + one.times
    return found


def render(rows: list[Row], cluster: str, mesh: str, batch: int) -> str:
    lines = [
        "# Communication and bandwidth",
        "",
        made_by("bench.communication"),
        "",
        f"Cluster `{cluster}` ({read_spec(cluster).description}), mesh {mesh}, batch {batch}, "
        f"models of size `small` with {', '.join(f'{k} {v}' for k, v in SHAPE.items())}. "
        "Milliseconds of a step and of its communication on an average device; megabytes that one "
        "device must send, and how fast it did.",
        "",
        "| model | plan | step ms | communication ms | sends MB | Mbit/s | collectives |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(row.collectives.items()))
        speed = row.sent_bytes * 8 / row.communication_s / 1e6 if row.communication_s else 0.0
        lines.append(
            f"| {row.model} | {row.plan} | {row.time_s * 1e3:.0f} "
            f"| {row.communication_s * 1e3:.0f} | {row.sent_bytes / 1e6:.2f} | {speed:.0f} "
            f"| {kinds} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
