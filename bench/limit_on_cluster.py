"""What a memory limit does on a slow network, near the limit at which checkpointed FSDP fits.

"FSDP, checkpointed" splits the batch in all blocks and all training state, and keeps of every
segment what comes into it: what people train with when memory is short. Limits are shares of what
its step needs: at 1 it just fits. CFP plans with each limit on a cluster, and both run in turn with
the templates that fit. On virtual devices, where sending costs little, the same question is asked
by `bench.memory_limit`.

`python -m bench.limit_on_cluster` writes bench/results/limit_on_cluster.md. It needs root. Stopped,
it goes on where it was (`--store`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.clustered import MODELS, SHAPE, Cell, add_cell_options
from bench.environment import made_by
from cfp import Plan, analyze
from cfp.devices import make_mesh
from cfp.layouts.state import State
from cfp.plan.assemble import assemble_plan
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.confidence import Verdict, judge
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep
from cfp.templates.by_name import make_templates

OUT = Path(__file__).parent / "results" / "limit_on_cluster.md"
TEMPLATES = ("data_parallel", "megatron", "megatron_sp", "zero1", "fsdp")
CHECKPOINTED, CFP = "fsdp, checkpointed", "cfp"
BATCH = 32  # activations are most of the memory
SHARES = (1.05,)
BUDGET = "300s"


@dataclass(frozen=True, slots=True)
class Row:
    """What ran at a limit of a model, as `cfp compare` says it, by name; `predicted_bytes` and
    `splits` are of CFP's plan."""

    model: str
    share: float
    limit_bytes: int
    steps: dict[str, dict[str, Any]]
    predicted_bytes: int
    splits: str

    def verdict(self, name: str) -> Verdict:
        return judge(self.steps[name]["runs_s"], self.steps[CFP]["runs_s"]).verdict

    def show(self, name: str) -> str:
        if name not in self.steps:
            return "-"
        step = self.steps[name]
        shown = f"{step['time_s'] * 1e3:.0f} ({step['memory_bytes'] / 2**20:.1f})"
        told = name == CFP or self.verdict(name) is Verdict.SLOWER
        return shown if told else f"{shown}, {self.verdict(name)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cell_options(parser, MODELS, OUT)
    parser.set_defaults(batch=BATCH)
    parser.add_argument("--budget", default=BUDGET, help="of each plan")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    options = parser.parse_args()
    store = options.store.absolute() / "limits"
    rows: list[Row] = []
    failed: list[str] = []
    for share, model in itertools.product(options.shares, options.models):
        cell = Cell(model, options.batch, options.cluster, options.mesh)
        row = measure(cell, share, store, options)
        if row is None:
            failed.append(f"{model} at {share:g}")
        else:
            rows.append(row)
        options.out.write_text(render(rows, failed, options))
    print(render(rows, failed, options))


def measure(cell: Cell, share: float, store: Path, options: argparse.Namespace) -> Row | None:
    """Returns what came of a cell; None where a command failed, which is printed."""
    store.mkdir(parents=True, exist_ok=True)
    name = f"{cell.name}-{share:g}"
    names = {CFP: store / f"{name}.json", CHECKPOINTED: store / f"{name}-fsdp.json"}
    step, args = cell.step()
    mesh = make_mesh(cell.mesh_shape, "cpu")
    beside = fsdp_checkpointed(step, args, mesh)
    beside.save(names[CHECKPOINTED])
    limit = int(share * beside.memory_bytes())
    if not names[CFP].exists():
        words = ["--memory-limit", str(limit), "--budget", options.budget]
        kept = ["--cache-dir", str(store), "--out", str(names[CFP])]
        if not runs(cell, ["plan", *cell.options(), *words, *kept]):
            return None
    made = make_templates(TEMPLATES, step, args, mesh)
    fit = [n for n, p in made.items() if isinstance(p, Plan) and p.memory_bytes() <= limit]
    compared = names[CFP].with_suffix(".compared")
    if not compared.exists():
        plans = ",".join([*map(str, names.values()), *fit])
        words = ["--plans", plans, "--rounds", str(ROUNDS), "--json"]
        scratch = compared.with_suffix(".new")
        with scratch.open("w") as output:
            if not runs(cell, ["compare", *cell.options(), *words], output):
                return None
        scratch.replace(compared)
    by_file = {str(file): name for name, file in names.items()}
    found = json.loads(compared.read_text())["plans"]
    steps = {by_file.get(one["name"], one["name"]): one for one in found if not one["failed"]}
    document = json.loads(names[CFP].read_text())
    splits = [segment["splits"] for segment in document["evidence"]["segments"]]
    predicted = document["predicted"]["memory_bytes"]
    return Row(cell.model, share, limit, steps, predicted, "; ".join(splits))


def runs(cell: Cell, words: list[str], output: TextIO | None = None) -> bool:
    """Runs a command of CFP on the cell's cluster; returns whether it succeeded."""
    print(f"== {cell.name}: cfp {words[0]}", file=sys.stderr)
    succeeded = not run(read_spec(cell.cluster), [sys.executable, "-m", "cfp", *words], output)
    if not succeeded:
        print(f"{cell.name} failed", file=sys.stderr)
    return succeeded


def fsdp_checkpointed(step: Any, args: tuple[Any, ...], mesh: Any) -> Plan:
    """Returns the plan by segments, so that its file says what each keeps."""
    analysis = analyze(step, *args, mesh_shape=tuple(mesh.devices.shape))
    kinds = find_kinds(analysis)
    interfaces = find_interfaces(analysis, kinds)
    chosen = [keeping_inputs(kinds[segment.kind]) for segment in analysis.segments]
    return assemble_plan(step, analysis, mesh, interfaces, chosen, name=CHECKPOINTED)


def keeping_inputs(kind: Kind) -> Option:
    """Returns the option that splits the batch, the first candidate of every block, and all
    training state, and keeps least."""
    least = next((keep for keep in (Keep.INPUTS, Keep.CONTRACTIONS) if keep in kind.levels), None)
    return Option((0,) * len(kind.strategies), State.FSDP, least or Keep.AS_WRITTEN)


def render(rows: list[Row], failed: list[str], options: argparse.Namespace) -> str:
    names = [n for n in (CFP, CHECKPOINTED, *TEMPLATES) if any(n in row.steps for row in rows)]
    shape = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    lines = [
        "# At a memory limit, on a slow network",
        "",
        made_by("bench.limit_on_cluster"),
        "",
        f"Cluster `{options.cluster}` ({read_spec(options.cluster).description}), mesh "
        f"{options.mesh}, batch {options.batch}, size `small` with {shape}; {options.budget} for "
        f"each plan. Milliseconds of a full step on {ROUNDS} fresh rounds, run in turn; in "
        "brackets MiB by the compiler; `-` where a plan does not fit. A plan beside CFP's is "
        "slower unless its cell says what the rounds show. Limits are shares of what "
        f"{CHECKPOINTED} needs.",
        "",
        "| model | limit MiB (share) | "
        + " | ".join(names)
        + f" | {CHECKPOINTED} / cfp | predicted MiB |",
        "|---|---|" + "---|" * (len(names) + 2),
    ]
    for row in rows:
        ratio = row.steps[CHECKPOINTED]["time_s"] / row.steps[CFP]["time_s"]
        off = row.predicted_bytes / row.steps[CFP]["memory_bytes"] - 1
        cells = " | ".join(map(row.show, names))
        predicted = f"{row.predicted_bytes / 2**20:.1f} ({off:+.1%})"
        limit = f"{row.limit_bytes / 2**20:.1f} ({row.share:g})"
        lines.append(f"| {row.model} | {limit} | {cells} | {ratio:.2f} | {predicted} |")
    if failed:
        lines += ["", f"No plan was made, or it did not run: {', '.join(failed)}."]
    lines += ["", "CFP's plans:", "", *(f"- {r.model} at {r.share:g}: {r.splits}" for r in rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
