"""How many programs profiling compiles, how long it takes, and what the plan loses by it.

For each model the default is measured into a fresh store, then everything: every way to split every
segment (of segments with more than `--sample` ways as many others, drawn at random). Both plans are
then valued with the numbers of the second:

    programs   compiled, by the default and by the exhaustive run
    regret     predicted time of the default's plan / that of the best plan - 1

`python -m bench.profiling_cost` writes bench/results/profiling_cost.md. Stopped, it goes on where
it was (`--store` keeps the measurements). For times worth keeping run it on an idle machine.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.environment import made_by
from bench.profiling.chain import best_chain, chain_cost
from cfp import Analysis, analyze
from cfp.devices import make_mesh
from cfp.models import config, make_step
from cfp.profile import Effort, Profile, Store
from cfp.profile.api import Manner, new_campaign
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.budget import Budget
from cfp.profile.profiler import measure_segments
from cfp.profile.programs.machine import Machine
from cfp.profile.runners.process import ProcessRunner
from cfp.report import TerminalProgress

OUT = Path(__file__).parent / "results" / "profiling_cost.md"
ALL = 81
DEVICES = 4
LAYERS = {"bert": 3, "gpt": 3, "llama": 3, "moe": 4}
SHAPE: dict[str, Any] = {"seq": 32, "batch": 8}


@dataclass(frozen=True, slots=True)
class Row:
    """One model: by the default, and by the exhaustive run."""

    model: str
    space: str
    programs: tuple[int, int]
    seconds: tuple[float, float]
    best_s: float
    regret: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--sample", type=int, default=ALL)
    options = parser.parse_args()
    rows = [run(model, options.store / f"cost_{model}", options.sample) for model in options.models]
    OUT.write_text(render(rows))
    print(render(rows))


def run(model: str, store: Path, sample: int) -> Row:
    step, args = make_step(config(model, "small", layers=LAYERS[model], **SHAPE), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(DEVICES,))
    few = measured(analysis, store, Scope())
    every = measured(analysis, store, Scope(exhaustive=True, sample=sample))
    first = {segment.kind.index: list(segment.costs) for segment in few.segments}
    # what the default measured counts too where not everything could be
    both = merged(few, every)
    allowed = {segment.kind.index: list(segment.costs) for segment in both.segments}
    _, chosen = best_chain(analysis, few, first)
    best_s, _ = best_chain(analysis, both, allowed)
    sizes = [
        f"{s.kind.space}" + ("" if s.kind.space <= sample else f" ({sample} drawn)")
        for s in every.segments
    ]
    return Row(
        model,
        " + ".join(sizes),
        (few.compiled + few.loaded, every.compiled + every.loaded),
        (few.seconds, few.seconds + every.seconds),
        best_s,
        chain_cost(analysis, both, chosen) / best_s - 1,
    )


def measured(analysis: Analysis, folder: Path, scope: Scope) -> Profile:
    mesh = make_mesh((DEVICES,), "cpu")
    console = Console(stderr=True)
    with (
        ProcessRunner(mesh) as runner,
        Store.open(folder) as store,
        TerminalProgress(console) as progress,
    ):
        budget = Budget.of(None)
        manner = Manner(effort=Effort(), progress=progress, budget=budget)
        campaign = new_campaign(Machine.of(mesh), runner, store, manner)
        return measure_segments(campaign, analysis, mesh, scope)


def merged(few: Profile, every: Profile) -> Profile:
    """Returns all that either measured."""
    segments = [
        replace(b, costs={**a.costs, **b.costs}, layouts={**a.layouts, **b.layouts})
        for a, b in zip(few.segments, every.segments, strict=True)
    ]
    reshardings = {**few.reshardings, **every.reshardings}
    return replace(every, segments=tuple(segments), reshardings=reshardings)


def render(rows: list[Row]) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    lines = [
        "# What profiling costs",
        "",
        made_by("bench.profiling_cost"),
        "",
        f"Models of size `small` with {sizes}, {DEVICES} virtual CPU devices. Programs are all "
        "that were compiled and run: segments, reshardings, two idle ones. The "
        "exhaustive run finds in the store what the default measured; its seconds include those.",
        "",
        "| model | ways to split its segments | programs, default | programs, exhaustive | share "
        "| seconds, default | seconds, exhaustive | best plan | regret |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        few, every = row.programs
        lines.append(
            f"| {row.model} | {row.space} | {few} | {every} | {few / every:.2f} | "
            f"{row.seconds[0]:.0f} | {row.seconds[1]:.0f} | {row.best_s * 1e3:.1f} ms | "
            f"{row.regret:.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
