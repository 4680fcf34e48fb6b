"""Whether a change made plans worse: the plans of another version of CFP beside this one's.

    git worktree add --detach ../before COMMIT
    python -m bench.versions ../before

On cells of `bench.throughput` and of `bench.plan_quality`, both versions plan with the same budget,
each from a store of its own, one after the other. Each then runs its plan in turn with the
templates, because a plan file need not load in another version. What is compared is

    to the best template   the plan's time / the fastest template's, medians of the same rounds

which does not depend on how fast the machine was at the time. `bench/results/versions.md` is
written. The clusters need root; stopped, it goes on where it was (`--store`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.clustered import Cell
from bench.environment import made_by
from bench.throughput.__main__ import XLA_FLAGS

OUT = Path(__file__).parent / "results" / "versions.md"
HERE = Path(__file__).parents[1]
VIRTUAL = "virtual devices"  # in one process: no cluster
# Slow and two hosts, one axis and two, and every model: set down before any of them was run.
CELLS = (
    Cell("moe", 8, "slow_200mbit", "4"),
    Cell("bert", 4, "slow_200mbit", "4"),
    Cell("gpt", 16, "slow_200mbit", "2x2"),
    Cell("llama", 16, "two_hosts_200mbit", "4"),
    Cell("bert", 8, "two_hosts_200mbit", "2x2"),
    Cell("moe", 4, "two_hosts_200mbit", "2x2"),
    Cell("gpt", 16, VIRTUAL, "4"),
    Cell("moe", 8, VIRTUAL, "4"),
    Cell("llama", 8, VIRTUAL, "4"),
    Cell("bert", 8, VIRTUAL, "2x2"),
)
# One of these is the fastest template in every cell of `throughput_sample.md`.
TEMPLATES = ("megatron", "alpa")
BUDGET, ROUNDS = "80s", 12


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a full step: the median of the rounds, and the interval that it lies in."""

    time_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A version's plan of a cell, and the templates that ran in turn with it."""

    ours: Step
    others: dict[str, Step]

    @property
    def best(self) -> str:
        return min(self.others, key=lambda name: self.others[name].time_s)

    @property
    def ratio(self) -> float:
        """Returns the plan's time to the fastest template's."""
        return self.ours.time_s / self.others[self.best].time_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="a checkout of the other version")
    parser.add_argument("--cells", type=int, nargs="+", default=list(range(len(CELLS))))
    parser.add_argument("--budget", default=BUDGET, help="of each plan")
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "versions")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    store = options.store.absolute()
    trees = {"before": options.before.resolve(), "after": HERE}
    found: dict[Cell, dict[str, Outcome]] = {}
    for cell in (CELLS[number] for number in options.cells):
        found[cell] = {
            name: measure(cell, tree, store / name, options.budget) for name, tree in trees.items()
        }
        options.out.write_text(render(found, trees, options.budget))
    print(options.out.read_text())


def measure(cell: Cell, tree: Path, store: Path, budget: str) -> Outcome:
    """Plans a cell with the CFP of a checkout and runs the plan beside the templates."""
    (store / "plans").mkdir(parents=True, exist_ok=True)
    plan = store / "plans" / f"{cell.name.replace(' ', '_')}.json"
    compared = plan.with_suffix(".compared")
    if not plan.exists():
        kept = ["--cache-dir", str(store), "--budget", budget, "--out", str(plan)]
        execute(cell, tree, ["plan", *cell.options(), *kept], plan.with_suffix(".printed"))
    if not compared.exists():
        plans = ",".join([str(plan), *TEMPLATES])
        words = ["--plans", plans, "--rounds", str(ROUNDS), "--json"]
        scratch = compared.with_suffix(".new")
        execute(cell, tree, ["compare", *cell.options(), *words], scratch)
        scratch.replace(compared)
    rows = {one["name"]: one for one in json.loads(compared.read_text())["plans"]}
    steps = {
        name: Step(one["time_s"], one["low_s"], one["high_s"])
        for name, one in rows.items()
        if one["failed"] is None
    }
    return Outcome(steps.pop(str(plan)), steps)


def execute(cell: Cell, tree: Path, words: Sequence[str], output: Path) -> None:
    """Runs a command of the CFP of a checkout where the cell is; what it prints goes to a file."""
    os.environ["XLA_FLAGS"] = XLA_FLAGS
    os.environ["PYTHONPATH"] = str(tree / "src")
    command = [sys.executable, "-m", "cfp", *words]
    print(f"== {cell.name}, {tree.name}: {words[0]}", file=sys.stderr, flush=True)
    with output.open("w") as file:
        if cell.cluster == VIRTUAL:
            code = subprocess.run(command, stdout=file, cwd=tree, check=False).returncode
        else:
            code = run(read_spec(cell.cluster), command, file)
    if code:
        raise SystemExit(f"{cell.name}: {' '.join(command)} failed with {code}")


def render(
    found: Mapping[Cell, Mapping[str, Outcome]], trees: Mapping[str, Path], budget: str
) -> str:
    lines = [
        "# Two versions",
        "",
        f"{made_by('bench.versions')}",
        "",
        f"Before is {commit(trees['before'])}, after is {commit(trees['after'])}. Each plan had "
        f"{budget}. Milliseconds are medians of {ROUNDS} rounds, in brackets the interval they "
        f"lie in (95 %). The ratio is to the fastest of {', '.join(TEMPLATES)} in the same rounds.",
        "",
        "| where | mesh | model | batch | before: step ms | to the best template | "
        "after: step ms | to the best template | after / before |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    changes = []
    for cell, both in found.items():
        changes.append(both["after"].ratio / both["before"].ratio)
        parts = [cell.cluster, cell.mesh, cell.model, str(cell.batch)]
        for outcome in both.values():
            low, mid, high = (
                f"{one * 1e3:.0f}"
                for one in (outcome.ours.low_s, outcome.ours.time_s, outcome.ours.high_s)
            )
            parts += [f"{mid} ({low}-{high})", f"{outcome.ratio:.3f} ({outcome.best})"]
        lines.append("| " + " | ".join([*parts, f"{changes[-1]:.3f}"]) + " |")
    mean = math.exp(sum(map(math.log, changes)) / len(changes))
    lines += ["", f"Geometric mean of the last column: {mean:.3f}; below 1 is faster."]
    return "\n".join(lines) + "\n"


def commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
