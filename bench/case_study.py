"""Where a formula goes wrong: the plans of Alpa and of CFP for one model, side by side.

Both come from `bench.communication`'s store: the plans measured on a cluster, the collectives that
each compiles to, and Alpa's own cost of both. `python -m bench.case_study` writes
bench/results/case_study.md. It needs root where that store is empty.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cluster.spec import read_spec
from bench.clustered import CFP, SHAPE, Cell, add_cell_options
from bench.communication import Row, measure, plans_of, sent_bytes
from bench.environment import made_by
from cfp import Plan
from cfp.blocks.feedback import find_feedback
from cfp.memory_size import bytes_text
from cfp.templates.alpa_ilp import estimate_alpa

OUT = Path(__file__).parent / "results" / "case_study.md"
BOTH = ("alpa", CFP)
SHOWN = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cell_options(parser, ("moe", "llama"), OUT)
    options = parser.parse_args()
    store = options.store.absolute()
    parts = [
        "# Alpa's plan and CFP's, side by side",
        "",
        made_by("bench.case_study"),
        "",
        f"Cluster `{options.cluster}` ({read_spec(options.cluster).description}), mesh "
        f"{options.mesh}, batch {options.batch}, size `small` with "
        f"{', '.join(f'{k} {v}' for k, v in SHAPE.items())}.",
    ]
    for model in options.models:
        cell = Cell(model, options.batch, options.cluster, options.mesh)
        rows = {row.plan: row for row in measure(cell, store)}
        plans = plans_of(cell, store / "plans" / f"{cell.name}.json")
        parts += study(model, rows, plans)
        options.out.write_text("\n".join(parts) + "\n")
    print(options.out.read_text())


def study(model: str, rows: dict[str, Row], plans: dict[str, Plan]) -> list[str]:
    lines = [
        "",
        f"## {model}",
        "",
        "| plan | Alpa's cost (millions) | sends MB | communication ms | step ms |",
        "|---|---|---|---|---|",
    ]
    costs = {name: alpa_cost(plans[name]) for name in BOTH}
    for name in BOTH:
        lines.append(
            f"| {name} | {costs[name] / 1e6:.2f} | {sent_bytes(plans[name]) / 1e6:.2f} | "
            f"{rows[name].communication_s * 1e3:.0f} | {rows[name].time_s * 1e3:.0f} |"
        )
    believed = costs[CFP] / costs["alpa"]
    measured = rows[CFP].communication_s / rows["alpa"].communication_s
    lines += [
        "",
        f"By Alpa's formula CFP's plan communicates {believed:.2f} times as much as Alpa's; "
        f"measured, it takes {measured:.2f} times as long. The largest transfers of each:",
    ]
    for name in BOTH:
        lines += ["", f"### {name}", "", "| kind | times | each | what |", "|---|---|---|---|"]
        lines += [f"| {text} |" for text in largest(plans[name])]
    return lines


def alpa_cost(plan: Plan) -> float:
    bound = plan.known("bench")
    graph, parameters = bound.analysis.graph, bound.analysis.grouping.parameters
    feedback = find_feedback(graph, parameters)
    shape = plan.mesh_shape
    return estimate_alpa(graph, shape, bound.layouts, parameters=parameters, feedback=feedback)


def largest(plan: Plan) -> list[str]:
    found: dict[tuple[str, int, str], int] = {}
    for one in plan.collectives():
        for origin in one.origins:
            what = f"{origin.dtype}[{','.join(map(str, origin.shape))}] {origin.role} "
            key = (one.kind, origin.bytes, what + origin.primitive)
            found[key] = found.get(key, 0) + one.times
    ranked = sorted(found.items(), key=lambda item: -item[0][1] * item[1])[:SHOWN]
    return [
        f"{kind} | {times} | {bytes_text(size)} | {what}" for (kind, size, what), times in ranked
    ]


if __name__ == "__main__":
    main()
