"""The communication model against measured communication, on clusters that are here.

On a test cluster `cfp calibrate` measures the links. Then plans are drawn: every template, and
random ones, of which half split all layers alike, half each in its own way, with training state
that follows the blocks, or ZeRO-1, or FSDP. Each runs as a full step, in turn with others, as the
processes of the cluster, and the profiler shows its communication (transfer and waiting on an
average device). Beside it stands what the links say:

    modelled = sum over the collectives of the compiled step, tensor by tensor, of Network.time_s
    error    = |modelled / measured - 1|
    tau      = Kendall's rank correlation with the measured communication; the second figure is over
               pairs that differ by more than 5 % when measured

and Alpa's volume (`estimate_alpa`), which knows no network.

`python -m bench.communication_model` writes bench/results/communication_model.md. It needs root.
Stopped, it goes on where it was (`--store`); `--models` and `--plans` make a smaller sample.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.clustered import CFP, MODELS, NAMES, SHAPE, Cell, add_cell_options, joined, run_inside
from bench.environment import made_by, told
from bench.rank import kendall
from cfp import Collective, Plan, analyze, compare, templates
from cfp.blocks.feedback import find_feedback
from cfp.devices import axis_names, make_mesh
from cfp.layouts.state import State
from cfp.links import Network, find_links
from cfp.plan.assemble import assemble_plan
from cfp.profile import Option
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind
from cfp.templates.alpa_ilp import estimate_alpa

OUT = Path(__file__).parent / "results" / "communication_model.md"
PLANS, ROUNDS = 30, 6
AT_ONCE = 6  # plans that run in turn: what was measured is kept after each such part
APART = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan's full step on the cluster; `failed` says why it did not run."""

    name: str
    time_s: float
    communication_s: float
    failed: str | None


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    measured_s: float
    modelled_s: float
    volume: float
    collectives: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cell_options(parser, MODELS, OUT)
    parser.add_argument("--plans", type=int, default=PLANS, help="of each model")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # the cluster's processes
    options = parser.parse_args()
    store = options.store.absolute()
    cells = [Cell(model, options.batch, options.cluster, options.mesh) for model in options.models]
    if options.inside:
        inside(cells[0], options.plans, options.part, options.inside)
        return
    file = calibrated(options.cluster, options.mesh, store)
    if file is None:
        return
    found: dict[str, list[Row]] = {}
    for cell in cells:
        axes = dict(zip(axis_names(len(cell.mesh_shape)), cell.mesh_shape, strict=True))
        network = find_links(str(file), axes)
        found[cell.model] = compare_model(cell, options.plans, store, network)
        options.out.write_text(render(found, network, cells[0]))
    print(options.out.read_text())


def calibrated(cluster: str, mesh: str, store: Path) -> Path | None:
    """Returns the cluster's links, calibrated unless that was done before; None where it fails,
    which is printed."""
    file = store / "links" / f"{cluster}-{mesh}.toml"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".new.toml")
        words = ["--mesh", mesh, "--platform", "cpu", "--out", str(scratch)]
        print(f"== calibrating {cluster}, mesh {mesh}", file=sys.stderr)
        if run(read_spec(cluster), [sys.executable, "-m", "cfp", "calibrate", *words]):
            print(f"{cluster}: calibrating failed", file=sys.stderr)
            return None
        scratch.replace(file)
    return file


def compare_model(cell: Cell, count: int, store: Path, network: Network) -> list[Row]:
    """Returns measured and modelled communication of a cell's plans."""
    mesh = make_mesh(cell.mesh_shape, "cpu")  # virtual: the compiler makes the same of the plans
    step, args = cell.step()
    measured = measure(cell, count, store)
    rows = []
    for name, plan in draw(step, args, mesh, count):
        found = measured.get(name)
        if found is None or found.failed is not None:
            why = "not measured" if found is None else found.failed
            print(f"{cell.name}: {name} is left out: {why}", file=sys.stderr)
            continue
        collectives = plan.collectives()
        modelled_s = sum(model(network, one) for one in collectives)
        runs = sum(one.times for one in collectives)
        rows.append(Row(name, found.communication_s, modelled_s, volume(plan), runs))
        print(f"{cell.name}: {rows[-1]}", file=sys.stderr, flush=True)
    return rows


def model(network: Network, one: Collective) -> float:
    """Returns the seconds that a collective takes in a step, by the links. CPUs run a merged one
    tensor by tensor; the pieces of an all-to-all are one tensor."""
    axes = one.axes or network.axes  # one along a part of an axis counts as along all
    whole = one.kind == "all-to-all"
    sizes = [one.bytes] if whole else [origin.bytes for origin in one.origins]
    return one.times * sum(network.time_s(one.kind, axes, size) for size in sizes)


def measure(cell: Cell, count: int, store: Path) -> dict[str, Measured]:
    """Returns the plans' full steps, by name, part by part; those of earlier runs are kept."""
    where = ["--cluster", cell.cluster, "--mesh", cell.mesh, "--batch", str(cell.batch)]
    found: dict[str, Measured] = {}
    for part in range(math.ceil(count / AT_ONCE)):
        words = ["--models", cell.model, *where, "--plans", str(count), "--part", str(part)]
        file = store / "communication_model" / f"{cell.name}-{count}-{part}.json"
        rows = run_inside(cell.cluster, "bench.communication_model", words, file) or []
        found |= {row["name"]: Measured(**row) for row in rows}
    return found


def inside(cell: Cell, count: int, part: int, file: Path) -> None:
    """Runs as one process of the cluster: all make the same plans, process 0 writes."""
    with joined(math.prod(cell.mesh_shape)) as team:
        mesh = make_mesh(cell.mesh_shape, "cpu")
        step, args = cell.step()
        drawn = list(draw(step, args, mesh, count))[part * AT_ONCE : (part + 1) * AT_ONCE]
        result = compare(step, *args, mesh=mesh, plans=dict(drawn), rounds=ROUNDS, team=team)
        if team.leads:
            rows = [
                Measured(
                    one.name,
                    one.time_s,
                    told(one.communication_s) if one.failed is None else 0.0,
                    one.failed,
                )
                for one in result.plans
            ]
            file.write_text(json.dumps([asdict(row) for row in rows]))


def draw(step: Any, args: Any, mesh: Any, count: int) -> Iterator[tuple[str, Plan]]:
    """Returns plans by name, the same in every process: the templates, then random ones."""
    named = [name for name in NAMES if name != CFP][:count]
    for name in named:
        yield name, getattr(templates, name)(step, *args, mesh=mesh)
    analysis = analyze(step, *args, mesh_shape=mesh.devices.shape)
    kinds = find_kinds(analysis)
    interfaces = find_interfaces(analysis, kinds)
    of = [segment.kind for segment in analysis.segments]
    chance = random.Random(0)
    for number in range(count - len(named)):
        state = chance.choice([*State])
        alike = [draw_option(kind, state, chance) for kind in kinds]
        options = [alike[kind] for kind in of]
        if number % 2:
            options = [draw_option(kinds[kind], state, chance) for kind in of]
        name = f"random {number}, {state.value}"
        yield name, assemble_plan(step, analysis, mesh, interfaces, options, name=name)


def draw_option(kind: Kind, state: State, chance: random.Random) -> Option:
    return Option(tuple(chance.randrange(len(ways)) for ways in kind.strategies), state)


def volume(plan: Plan) -> float:
    """Returns what Alpa's formula prices the plan's communication at."""
    bound = plan.known("bench")
    graph, parameters = bound.analysis.graph, bound.analysis.grouping.parameters
    return estimate_alpa(
        graph,
        plan.mesh.devices.shape,
        bound.layouts,
        parameters=parameters,
        feedback=find_feedback(graph, parameters),
    )


def render(found: dict[str, list[Row]], network: Network, cell: Cell) -> str:
    lines = [
        "# Modelled against measured communication",
        "",
        made_by("bench.communication_model"),
        "",
        f"Cluster `{cell.cluster}` ({read_spec(cell.cluster).description}), mesh {cell.mesh}, "
        f"batch {cell.batch}, size `small` with "
        f"{', '.join(f'{name} {value}' for name, value in SHAPE.items())}. Taus in brackets are "
        f"over pairs more than {APART:.0%} apart. The links:",
        "",
        *(f"- {line}" for line in network.show().splitlines()),
        "",
        "| model | plans | most / least | median error | worst error | tau, modelled "
        "| tau, Alpa's volume |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, rows in found.items():
        measured = [row.measured_s for row in rows]
        errors = [abs(row.modelled_s / row.measured_s - 1) for row in rows]
        taus = [
            f"{kendall(xs, measured):.2f} ({kendall(xs, measured, APART):.2f})"
            for xs in ([row.modelled_s for row in rows], [row.volume for row in rows])
        ]
        lines.append(
            f"| {model} | {len(rows)} | {max(measured) / min(measured):.1f} | "
            f"{statistics.median(errors):.1%} | {max(errors):.1%} | {taus[0]} | {taus[1]} |"
        )
    for model, rows in found.items():
        lines += [
            "",
            f"## {model}",
            "",
            "| plan | collectives | measured ms | modelled ms | error | Alpa's volume (millions) |",
            "|---|---|---|---|---|---|",
        ]
        for row in sorted(rows, key=lambda row: row.measured_s):
            lines.append(
                f"| {row.name} | {row.collectives} | {row.measured_s * 1e3:.0f} | "
                f"{row.modelled_s * 1e3:.0f} | {row.modelled_s / row.measured_s - 1:+.1%} | "
                f"{row.volume / 1e6:.2f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
