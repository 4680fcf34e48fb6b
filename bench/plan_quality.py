"""Is the plan good? CFP's plan against the five templates, and against every plan there is.

For each model, batch size and mesh of virtual CPU devices, `cfp.plan` makes a plan; `cfp.compare`
then runs its step and the steps of the templates in turn, afresh. With `--exhaustive`, on a mesh of
one axis, every way to split the layer is then run as a full step too (all layers alike, embedding
and head as in CFP's plan), and the fastest of them in turn with CFP's plan.

    to the best template   CFP's measured step / that of the fastest template, round by round: the
                           median; below 1 is faster. `tie` where its 95 % interval has 1 in it
    to the best of all     CFP's measured step / that of the fastest of all plans

`python -m bench.plan_quality` writes bench/results/plan_quality.md. Stopped, it goes on where it
was (`--store`, and a file beside it). For times worth keeping run it on an idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import cfp
from bench.environment import made_by
from bench.planned import LAYERS, MODELS, SHAPE, Bench, Case, make_case
from cfp import templates
from cfp.planning.compare import ComparedPlan
from cfp.profile import Option
from cfp.profile.measure.rounds import USUAL
from cfp.report import TerminalProgress
from cfp.templates.by_name import make_templates

OUT = Path(__file__).parent / "results" / "plan_quality.md"
BATCHES = (8, 16)
CFP = "cfp"
FINALISTS, ROUNDS = 5, 30


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of full steps; `of_all_s` is of the fastest of all plans, `ours_again_s` of CFP's
    plan run in turn with them."""

    model: str
    batch: int
    mesh: str
    splits: str
    predicted_s: float
    compared: list[dict[str, Any]]
    seconds: float
    plans_run: int = 0
    of_all_s: float = 0.0
    ours_again_s: float = 0.0
    best_of_all: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--meshes", nargs="+", default=["4", "2x2"])
    parser.add_argument("--exhaustive", nargs="*", default=["gpt", "llama"], choices=MODELS)
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--budget", help="of each plan, such as 3m [default: none]")
    parser.add_argument("--wave", type=int, default=4, help="programs compiled at once")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    done = options.store / "plan_quality.json"
    rows = [Row(**row) for row in json.loads(done.read_text())] if done.exists() else []
    for text, batch, model in itertools.product(options.meshes, options.batches, options.models):
        if any((r.model, r.batch, r.mesh) == (model, batch, text) for r in rows):
            continue
        case = make_case(model, batch, tuple(map(int, text.split("x"))))
        rows.append(run(case, text, options.store, options.wave, options.budget))
        keep(rows, done, options.out)
    for i, row in enumerate(rows):
        first = row.mesh == "4" and row.batch == options.batches[0]
        if first and row.model in options.exhaustive and not row.plans_run:
            case = make_case(row.model, row.batch, (4,))
            rows[i] = against_all(row, case, options.store, options.wave)
            keep(rows, done, options.out)
    print(options.out.read_text())


def keep(rows: list[Row], done: Path, out: Path) -> None:
    done.write_text(json.dumps([asdict(row) for row in rows]))
    out.write_text(render(rows))


def run(case: Case, mesh: str, store: Path, wave: int, budget: str | None) -> Row:
    with TerminalProgress(Console(stderr=True)) as progress:
        plan = cfp.plan(
            case.step,
            *case.args,
            mesh=case.mesh,
            cache_dir=store,
            budget=budget,
            effort=replace(USUAL, wave=wave),
            progress=progress,
        )
        assert plan.evidence is not None
        assert plan.predicted is not None
        found = cfp.compare(
            case.step,
            *case.args,
            mesh=case.mesh,
            plans={CFP: plan} | make_templates(templates.__all__, case.step, case.args, case.mesh),
            rounds=ROUNDS,
            progress=progress,
        )
    return Row(
        model=case.model,
        batch=case.batch,
        mesh=mesh,
        splits="; ".join(dict.fromkeys(s.splits for s in plan.evidence.segments)),
        predicted_s=plan.predicted.time_s,
        compared=[asdict(one) for one in found.plans],
        seconds=plan.evidence.seconds,
    )


def against_all(row: Row, case: Case, store: Path, wave: int) -> Row:
    """Returns CFP's plan beside every way to split the layer, all layers alike, the other segments
    as in CFP's plan. The fastest of them and CFP's plan then run in turn once more, afresh."""
    with Bench(case, store, wave) as bench:
        predicted = bench.proposals.solver.fastest(None)
        assert predicted is not None
        ours = bench.proposals.make(predicted.plan)
        kinds, of = bench.proposals.kinds, bench.proposals.composition.kinds
        layer = kinds[max(set(of), key=of.count)]
        sizes = [len(choices) for choices in layer.strategies]
        plans = {}
        for combo in itertools.product(*map(range, sizes)):
            options = [
                Option(combo) if kind == layer.index else option
                for kind, option in zip(of, ours.options, strict=True)
            ]
            plans[layer.show(Option(combo))] = bench.assemble(options)
        times = bench.step_times(plans)
        fastest = sorted(times, key=lambda name: times[name])[:FINALISTS]
    finalists = {CFP: ours.plan, **{name: plans[name] for name in fastest}}
    found = cfp.compare(case.step, *case.args, mesh=case.mesh, plans=finalists, rounds=ROUNDS)
    compared = {one.name: one for one in found.plans}
    best = min((one for name, one in compared.items() if name != CFP), key=lambda one: one.time_s)
    return replace(
        row,
        plans_run=len(times),
        of_all_s=best.time_s,
        ours_again_s=compared[CFP].time_s,
        best_of_all=best.name,
    )


def render(rows: list[Row]) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    lines = [
        "# CFP's plan against the templates",
        "",
        made_by("bench.plan_quality"),
        "",
        f"Models of size `small` with {LAYERS} layers (MoE {LAYERS + 1}), {sizes}. Milliseconds of "
        "a full step, run in turn, on virtual CPU devices.",
        "",
        "| model | batch | mesh | CFP | predicted | "
        + " | ".join(templates.__all__)
        + " | to the best template |",
        "|---|---|---|---|---|" + "---|" * (len(templates.__all__) + 1),
    ]
    for row in rows:
        found = {one["name"]: ComparedPlan(**one) for one in row.compared}
        ours = found.pop(CFP)
        best = min(
            (one for one in found.values() if one.failed is None), key=lambda one: one.time_s
        )
        cells = [
            f"{found[name].time_s * 1e3:.1f}" if found[name].failed is None else "-"
            for name in templates.__all__
        ]
        shown = max(ours, best, key=lambda one: one.time_s).verdict
        lines.append(
            f"| {row.model} | {row.batch} | {row.mesh} | {ours.time_s * 1e3:.1f} | "
            f"{row.predicted_s * 1e3:.1f} | {' | '.join(cells)} | "
            f"{ours.ratio / best.ratio:.3f} ({best.name}, {shown}) |"
        )
    every = [row for row in rows if row.plans_run]
    if every:
        lines += [
            "",
            "Against every plan of the layer, run as a full step:",
            "",
            "| model | batch | mesh | plans run | CFP | the fastest of all | to the best of all |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row.model} | {row.batch} | {row.mesh} | {row.plans_run} | "
            f"{row.ours_again_s * 1e3:.1f} | {row.of_all_s * 1e3:.1f} ({row.best_of_all}) | "
            f"{row.ours_again_s / row.of_all_s:.3f} |"
            for row in every
        ]
    lines += ["", "CFP's plans (distinct segments in order):", ""]
    lines += [f"- {row.model}, batch {row.batch}, {row.mesh}: {row.splits}" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
