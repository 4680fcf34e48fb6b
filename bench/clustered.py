"""What the benchmarks on test clusters share: a model, a batch, a mesh, planned on a cluster.

The plan is made by the product itself, `cfp plan ... --beside all` as the processes of the cluster;
its file has the measured full steps of every template, run in turn with the plan's own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import jax

from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.environment import environment
from cfp.audit import NO_TIME
from cfp.cli_cluster import VARIABLES
from cfp.cluster import Team
from cfp.cluster.join import Membership
from cfp.models import config, make_step
from cfp.profile.confidence import level
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
        """Of the commands that take a model and a mesh."""
        shape = [word for name, value in SHAPE.items() for word in (f"--{name}", str(value))]
        where = ["--mesh", self.mesh, "--platform", "cpu"]
        return [self.model, "--size", "small", "--batch", str(self.batch), *shape, *where]

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.mesh.split("x")))

    def step(self) -> tuple[Any, tuple[Any, ...]]:
        """As the commands make it, and its abstract arguments."""
        made = config(self.model, "small", batch=self.batch, **SHAPE)
        step, args = make_step(made, abstract=True)
        return jax.jit(step, donate_argnums=0), args

    def flops(self) -> float:
        """Of one step, over all devices."""
        step, args = self.step()
        return model_flops(trace(step, *args))


def add_cell_options(parser: argparse.ArgumentParser, models: Sequence[str], out: Path) -> None:
    """Of a benchmark that looks at one cell of each model."""
    parser.add_argument("--models", nargs="+", default=list(models), choices=MODELS)
    parser.add_argument("--cluster", default="slow_200mbit")
    parser.add_argument("--mesh", default="4")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "clusters")
    parser.add_argument("--out", type=Path, default=out)


@dataclass(frozen=True, slots=True)
class Step:
    """A measured full step, `runs_s` round by round; `failed` says why there is none."""

    time_s: float
    low_s: float
    high_s: float
    failed: str | None
    runs_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """What came of a cell. `splits` are the chosen plan's, by segment; `held` is the share of the
    weights that a device has: 1 in data parallel. `made` is the command and the environment."""

    cell: Cell
    splits: str
    held: float
    predicted_s: float
    seconds: float
    programs: int
    steps: dict[str, Step]
    made: str

    @property
    def best(self) -> str:
        return min(
            (name for name in self.steps if self.steps[name].failed is None),
            key=lambda name: self.steps[name].time_s,
        )

    def ties(self, name: str, other: str) -> bool:
        """Which is faster cannot be told; where runs were not kept nothing is a tie."""
        return level(self.steps[name].runs_s, self.steps[other].runs_s) is True


def run_inside(cluster: str, module: str, words: Sequence[str], file: Path) -> Any:
    """What a benchmark finds when its processes are the cluster's (`--inside`), kept in a file.
    None where it fails, which is said."""
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
    """The processes of the cluster this is one of, which have so many CPU devices together."""
    address, count, index = (os.environ[name] for name in VARIABLES)
    with Membership(address, int(count), int(index)).joined(devices, "cpu") as team:
        assert team is not None, "a cluster has several processes"
        yield team


def plan_cell(cell: Cell, store: Path, budget: str | None = None) -> Planned | None:
    """Plans it on its cluster, unless that was done before; None where it fails, which is said."""
    file = store / "plans" / f"{cell.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        command = [sys.executable, "-m", "cfp", "plan", *cell.options(), "--beside", "all"]
        page = str(file.with_suffix(".html"))
        kept = ["--cache-dir", str(store), "--out", str(file), "--report", page]
        kept += [] if budget is None else ["--budget", budget]
        print(f"== {cell.name}", file=sys.stderr)
        if run(read_spec(cell.cluster), [*command, *kept]):
            print(f"{cell.name} failed", file=sys.stderr)
            return None
    document = json.loads(file.read_text())
    steps = document["evidence"]["steps"]
    if not steps or any(step["failed"] == NO_TIME for step in steps):
        file.unlink()
        print(f"{cell.name}: the budget ended before all steps ran; run again", file=sys.stderr)
        return None
    given = "" if budget is None else f" --budget {budget}"
    return read_planned(cell, document, f"`cfp plan --beside all{given}`, {environment()}")


def read_planned(cell: Cell, document: dict[str, Any], made: str) -> Planned:
    evidence = document["evidence"]
    steps: dict[str, Step] = {}
    for i, step in enumerate(evidence["steps"]):
        name = CFP if i == 0 else step["name"]
        times = (step["measured_s"], step["low_s"], step["high_s"])
        steps[name] = Step(*times, step["failed"], tuple(step["runs_s"]))
    return Planned(
        cell,
        _ranges([segment["splits"] for segment in evidence["segments"]]),
        _held(document),
        document["predicted"]["time_s"],
        evidence["seconds"],
        evidence["programs"],
        steps,
        made,
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
