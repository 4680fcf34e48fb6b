"""The fastest ways to split a GPT layer: measured, beside what Alpa's cost model says of them.

All segments of GPT `small` are profiled on 4 virtual CPU devices. The `TOP` fastest plans of the
layer are then run as full steps, all layers alike, embedding and head as is best for data parallel,
in turns. Beside each stand its measured parts and Alpa's volume cost (`estimate_alpa`): what the
paper shows in its figure of volume against overhead. Kendall's tau says how well each orders the
measured full steps; 1 is perfectly, 0 not at all.

`python -m bench.top_plans` writes bench/results/top_plans.md. For times worth keeping run it on an
otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bench.environment import made_by, told
from bench.profiling.chain import chain_cost
from bench.profiling_cost import measured
from bench.rank import kendall
from cfp import Analysis, analyze
from cfp.blocks import Strategy
from cfp.devices import make_mesh
from cfp.models import config, make_step
from cfp.plan import build_plan
from cfp.profile import Option, Profile
from cfp.profile.explore.scope import Scope
from cfp.templates.alpa_ilp import estimate_alpa

OUT = Path(__file__).parent / "results" / "top_plans.md"
DEVICES = 4
TOP = 20
WARM, ROUNDS = 2, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--top", type=int, default=TOP)
    options = parser.parse_args()
    mesh = make_mesh((DEVICES,), "cpu")
    step, args = make_step(config("gpt", "small"))
    analysis = analyze(step, *args, mesh_shape=(DEVICES,))
    profile = measured(analysis, options.store / "top_plans", Scope())
    layer = max(profile.segments, key=lambda segment: segment.kind.times).kind.index
    chosen = profile.segments[layer].ranked()[: options.top]
    plans = [plan_of(analysis, profile, layer, option) for option in chosen]
    steps_s = full_steps(step, args, analysis, mesh, profile, plans)
    OUT.write_text(render(analysis, profile, layer, plans, steps_s))
    print(OUT.read_text())


def plan_of(analysis: Analysis, profile: Profile, layer: int, option: Option) -> list[Option]:
    """Returns the option for every layer; the other segments take what is fastest next to data
    parallel."""
    rows = Option((0,) * len(option.combo))
    plan: list[Option] = []
    for segment in analysis.segments:
        if segment.kind == layer:
            plan.append(option)
            continue
        others = profile.segments[segment.kind].costs

        def cost(candidate: Option, at: int = segment.index) -> float:
            near = [rows if s.kind == layer else Option((0,)) for s in analysis.segments]
            near[at] = candidate
            return chain_cost(analysis, profile, near)

        plan.append(min(others, key=cost))
    return plan


def full_steps(
    step: Any,
    args: tuple[Any, ...],
    analysis: Analysis,
    mesh: Mesh,
    profile: Profile,
    plans: Sequence[Sequence[Option]],
) -> list[float]:
    """Returns the median seconds of every plan's full step, run in turns."""

    def ready(plan: Sequence[Option]) -> Any:
        made = build_plan(
            step, analysis, mesh, strategies(analysis, profile, plan), name="candidate"
        )
        jitted = made.jit(step)
        placed = made.place(*args)
        jax.block_until_ready(jitted(*placed))
        return jitted, placed

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runners = list(pool.map(ready, plans))
    times: list[list[float]] = [[] for _ in plans]
    for round_ in range(WARM + ROUNDS):
        for found, (jitted, placed) in zip(times, runners, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(jitted(*placed))
            if round_ >= WARM:
                found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]


def strategies(analysis: Analysis, profile: Profile, plan: Sequence[Option]) -> list[Strategy]:
    """Returns a strategy per block of the step."""
    found: list[Strategy] = [()] * len(analysis.blocks)
    for segment, option in zip(analysis.segments, plan, strict=True):
        kind = profile.segments[segment.kind].kind
        for block, strategy in zip(segment.blocks, kind.chosen(option), strict=True):
            found[block] = strategy
    return found


def render(
    analysis: Analysis,
    profile: Profile,
    layer: int,
    plans: Sequence[Sequence[Option]],
    steps_s: Sequence[float],
) -> str:
    segment = profile.segments[layer]
    kind, extract = segment.kind, segment.kind.extracts[0]
    at = next(s.index for s in analysis.segments if s.kind == layer)
    options = [plan[at] for plan in plans]
    costs = [segment.costs[option] for option in options]
    volumes = [
        estimate_alpa(
            extract.graph,
            extract.blocks.mesh_shape,
            segment.layouts[option][0],
            parameters=extract.blocks.parameters,
            feedback=extract.feedback,
        )
        for option in options
    ]
    predicted = [chain_cost(analysis, profile, plan) for plan in plans]
    errors = [abs(p / m - 1) for p, m in zip(predicted, steps_s, strict=True)]
    taus = {
        "measured layer": kendall([cost.time_s for cost in costs], steps_s),
        "predicted step (segments and reshardings)": kendall(predicted, steps_s),
        "measured communication of the layer": kendall(
            [told(cost.communication_s) for cost in costs], steps_s
        ),
        "Alpa's volume": kendall(volumes, steps_s),
    }
    lines = [
        "# The fastest ways to split a GPT layer",
        "",
        made_by("bench.top_plans"),
        "",
        f"GPT `small`, {DEVICES} virtual CPU devices; {segment.ways} of {kind.space} ways "
        f"measured, the fastest {len(plans)} shown. Milliseconds, of one layer (forward, backward, "
        "update) but for the full step; computing, sending and waiting are a device's share by the "
        "profiler; memory is the compiler's for the layer alone; volume is Alpa's cost in "
        "millions.",
        "",
        "| splits | layer | +- | computing | sending | waiting | memory MiB | Alpa's volume "
        "| predicted step | full step |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for option, cost, volume, guess, full in zip(
        options, costs, volumes, predicted, steps_s, strict=True
    ):
        shares = cost.shares
        parts = (
            ["-"] * 3
            if shares is None
            else [f"{s * 1e3:.1f}" for s in (shares.compute_s, shares.transfer_s, shares.waiting_s)]
        )
        lines.append(
            f"| {kind.show(option)} | {cost.time_s * 1e3:.1f} | {cost.spread_s * 1e3:.1f} | "
            f"{' | '.join(parts)} | {cost.memory.total_bytes / 2**20:.1f} | {volume / 1e6:.1f} | "
            f"{guess * 1e3:.0f} | {full * 1e3:.0f} |"
        )
    lines += ["", "| Kendall's tau with the measured full step | |", "|---|---|"]
    lines += [f"| {name} | {tau:.2f} |" for name, tau in taus.items()]
    lines += [
        "",
        f"Predicted against measured full step: median error {statistics.median(errors):.1%}.",
        "",
        "| resharding | ms |",
        "|---|---|",
    ]
    lines += [
        f"| {what.show()} | {seconds * 1e3:.2f} |" for what, seconds in profile.reshardings.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
