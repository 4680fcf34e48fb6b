"""What the benchmarks on test clusters share: a model, a batch, a mesh, planned on a cluster.

The plan is made by the product itself, `cfp plan`, as the processes of the cluster. Then
`cfp compare` runs its full step in turn with those of every template, on rounds that had no part in
choosing it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import jax

from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.environment import environment
from cfp.cluster import Team
from cfp.cluster.join import Membership
from cfp.cluster.launch import VARIABLES
from cfp.models import config, make_step
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.confidence import Judgement, judge
from cfp.trace import trace
from cfp.training.flops import model_flops

MODELS = ("bert", "gpt", "moe", "llama")
BATCHES = (4, 8, 16)
CLUSTERS = ("slow_200mbit", "two_hosts_200mbit", "unshaped")
MESHES = ("4", "2x2", "8", "2x4")
# of every model, size `small`: for a layer, data parallel sends three times as much as tensor
# parallel at batch 4, and less than it at 16
SHAPE = {"layers": 2, "hidden": 128, "heads": 8, "seq": 32, "vocab": 512}
CFP = "cfp"
NAMES = ("data_parallel", "megatron", "zero1", "fsdp", "alpa", CFP)
# What a cell's times are of. `CHOSEN_BY`: CFP's is the best of up to three plans in the very rounds
# that are reported, 3 to 13 of them; cells that were kept without a rule are so. `FRESH`: the
# chosen plan on rounds of its own, 16 or more, beside the templates.
CHOSEN_BY, FRESH = "rounds the plan was chosen by", "fresh rounds"


@dataclass(frozen=True, slots=True)
class Cell:
    model: str
    batch: int
    cluster: str
    mesh: str

    @property
    def name(self) -> str:
        return f"{self.cluster}-{self.mesh}-{self.model}-{self.batch}"

    def options(self) -> list[str]:
        """Returns the options of the commands that take a model and a mesh."""
        shape = [word for name, value in SHAPE.items() for word in (f"--{name}", str(value))]
        where = ["--mesh", self.mesh, "--platform", "cpu"]
        return [self.model, "--size", "small", "--batch", str(self.batch), *shape, *where]

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.mesh.split("x")))

    def step(self) -> tuple[Any, tuple[Any, ...]]:
        """Returns the step as the commands make it, and its abstract arguments."""
        made = config(self.model, "small", batch=self.batch, **SHAPE)
        step, args = make_step(made, abstract=True)
        return jax.jit(step, donate_argnums=0), args

    def flops(self) -> float:
        """Returns the FLOPs of one step, over all devices."""
        step, args = self.step()
        return model_flops(trace(step, *args))


def add_cell_options(parser: argparse.ArgumentParser, models: Sequence[str], out: Path) -> None:
    """Adds the options of a benchmark that looks at one cell of each model."""
    parser.add_argument("--models", nargs="+", default=list(models), choices=MODELS)
    parser.add_argument("--cluster", default="slow_200mbit")
    parser.add_argument("--mesh", default="4")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "clusters")
    parser.add_argument("--out", type=Path, default=out)


@dataclass(frozen=True, slots=True)
class Step:
    """A measured full step, `runs_s` round by round; `failed` says why there is none."""

    time_s: float  # None where it failed, in cells of fresh rounds
    low_s: float
    high_s: float
    failed: str | None
    runs_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """What came of a cell. `splits` are the chosen plan's, by segment; `held` is the share of the
    weights that a device has: 1 in data parallel. `made` is the command and the environment, `rule`
    says what the times are of."""

    cell: Cell
    splits: str
    held: float
    predicted_s: float
    seconds: float
    programs: int
    steps: dict[str, Step]
    made: str
    rule: str = CHOSEN_BY

    @property
    def best(self) -> str:
        return self._fastest([name for name, step in self.steps.items() if step.failed is None])

    @property
    def best_other(self) -> str | None:
        """Returns the fastest template; None where none runs."""
        ran = [n for n in NAMES if n != CFP and n in self.steps and self.steps[n].failed is None]
        return self._fastest(ran) if ran else None

    def _fastest(self, names: Sequence[str]) -> str:
        return min(names, key=lambda name: self.steps[name].time_s)

    def judge(self, name: str, other: str) -> Judgement:
        return judge(self.steps[name].runs_s, self.steps[other].runs_s)


def run_inside(cluster: str, module: str, words: Sequence[str], file: Path) -> Any:
    """Returns what a benchmark finds when its processes are the cluster's (`--inside`), which is
    kept in a file; None where it fails, which is printed."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", module, *words, "--inside", str(file)]
        print(f"== {module}: {file.stem}", file=sys.stderr)
        if run(read_spec(cluster), command):
            print(f"{module}: {file.stem} failed", file=sys.stderr)
            return None
    return json.loads(file.read_text())


@contextlib.contextmanager
def joined(devices: int) -> Iterator[Team]:
    """Gives the team of the cluster's processes, of which this is one, and which make `devices` CPU
    devices together."""
    address, count, index = (os.environ[name] for name in VARIABLES)
    with Membership(address, int(count), int(index)).joined(devices, "cpu") as team:
        assert team is not None, "a cluster has several processes"
        yield team


def plan_cell(cell: Cell, store: Path, budget: str | None = None) -> Path | None:
    """Plans a cell on its cluster, unless that was done before, and returns the plan's file; None
    where it fails, which is printed."""
    file = store / "plans" / f"{cell.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        command = [sys.executable, "-m", "cfp", "plan", *cell.options()]
        page = str(file.with_suffix(".html"))
        kept = ["--cache-dir", str(store), "--out", str(file), "--report", page]
        kept += [] if budget is None else ["--budget", budget]
        print(f"== {cell.name}: planning", file=sys.stderr)
        if run(read_spec(cell.cluster), [*command, *kept]):
            print(f"{cell.name} failed", file=sys.stderr)
            return None
    return file


def compare_cell(cell: Cell, plan: Path, store: Path) -> dict[str, dict[str, Any]] | None:
    """Returns what `cfp compare` finds of the plan and of every template, by name, on rounds of
    their own, unless that was done before; None where it fails, which is printed."""
    file = store / "compared" / f"{cell.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        plans = ",".join([str(plan), *(name for name in NAMES if name != CFP)])
        command = [sys.executable, "-m", "cfp", "compare", *cell.options(), "--plans", plans]
        scratch = file.with_suffix(".new")
        print(f"== {cell.name}: {ROUNDS} fresh rounds", file=sys.stderr)
        with scratch.open("w") as output:
            words = ["--rounds", str(ROUNDS), "--json"]
            code = run(read_spec(cell.cluster), [*command, *words], output)
        if code:
            print(f"{cell.name} failed", file=sys.stderr)
            return None
        scratch.replace(file)
    found = {one["name"]: one for one in json.loads(file.read_text())["plans"]}
    found[CFP] = found.pop(str(plan))
    return found


def measure_cell(cell: Cell, store: Path, budget: str | None = None) -> Planned | None:
    """Plans a cell and runs the plan on fresh rounds, templates beside it."""
    file = plan_cell(cell, store, budget)
    compared = None if file is None else compare_cell(cell, file, store)
    if file is None or compared is None:
        return None
    given = "" if budget is None else f" --budget {budget}"
    made = f"`cfp plan{given}`, then `cfp compare --rounds {ROUNDS}`, {environment()}"
    return read_planned(cell, json.loads(file.read_text()), compared, made)


def read_planned(
    cell: Cell, document: dict[str, Any], compared: Mapping[str, dict[str, Any]], made: str
) -> Planned:
    evidence = document["evidence"]
    steps = {}
    for name in NAMES:
        one = compared[name]
        times = (one["time_s"], one["low_s"], one["high_s"])
        steps[name] = Step(*times, one["failed"], tuple(one["runs_s"] or ()))
    return Planned(
        cell,
        _ranges([segment["splits"] for segment in evidence["segments"]]),
        _held(document),
        document["predicted"]["time_s"],
        evidence["seconds"],
        evidence["programs"],
        steps,
        made,
        FRESH,
    )


def _held(document: dict[str, Any]) -> float:
    sizes: dict[str, int] = document["mesh"]
    whole = own = 0.0
    for path, one in document["arguments"].items():
        if path.startswith("state.params"):
            axes = [a for dim in one["spec"] for a in (dim if isinstance(dim, list) else [dim])]
            whole += math.prod(one["shape"])
            own += math.prod(one["shape"]) / math.prod(sizes[a] for a in axes if a is not None)
    return own / whole


def _ranges(words: Sequence[str]) -> str:
    found = []
    for word, group in groupby(range(len(words)), key=lambda i: words[i]):
        at = list(group)
        found.append(f"{at[0]}{f'-{at[-1]}' if len(at) > 1 else ''}: {word}")
    return "; ".join(found)
