"""What a memory limit does: LLaMA with growing layers and growing batch under a fixed limit.

The paper's memory figure. On 4 virtual CPU devices, which have no limit of their own, the limit is
`--limit` per device for every case. A plan fits if the compiler says that its step needs no more.

`python -m bench.memory_limit` writes bench/results/memory_limit.md. Stopped, it goes on where it
was (`--store`). For times worth keeping run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import cfp
from bench.environment import made_by
from bench.planned import SHAPE, make_case
from cfp.errors import CfpError
from cfp.memory_size import bytes_text, parse_memory
from cfp.profile.measure.rounds import USUAL
from cfp.report import TerminalProgress

OUT = Path(__file__).parent / "results" / "memory_limit.md"
BESIDE = ("data_parallel", "alpa", "zero1", "fsdp")
LIMIT = "44MiB"
CASES = ((2, 16), (3, 16), (4, 16), (5, 16), (4, 8), (4, 24))  # layers, batch


@dataclass(frozen=True, slots=True)
class Row:
    layers: int
    batch: int
    splits: str
    predicted_bytes: int
    mixed: int  # ways to split the layer that the plan uses
    steps: dict[str, Any]
    why: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", default=LIMIT)
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--wave", type=int, default=4, help="programs compiled at once")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    limit = parse_memory(options.limit)
    done = options.store / "memory_limit.json"
    rows = [Row(**row) for row in json.loads(done.read_text())] if done.exists() else []
    for layers, batch in CASES:
        if not any((row.layers, row.batch) == (layers, batch) for row in rows):
            rows.append(run(layers, batch, limit, options.store, options.wave))
            done.write_text(json.dumps([asdict(row) for row in rows]))
            options.out.write_text(render(rows, limit))
    print(options.out.read_text())


def run(layers: int, batch: int, limit: int, store: Path, wave: int) -> Row:
    case = make_case("llama", batch, (4,), layers=layers)
    try:
        with TerminalProgress(Console(stderr=True)) as progress:
            plan = cfp.plan(
                case.step,
                *case.args,
                mesh=case.mesh,
                memory_limit=limit,
                beside=BESIDE,
                cache_dir=store,
                effort=replace(USUAL, wave=wave),
                progress=progress,
            )
    except CfpError as error:
        return Row(layers, batch, "", 0, 0, {}, str(error))
    assert plan.evidence is not None
    assert plan.predicted is not None
    kinds = [segment.kind for segment in case.analysis.segments]
    layer = max(set(kinds), key=kinds.count)
    of_layer = {
        segment.splits
        for kind, segment in zip(kinds, plan.evidence.segments, strict=True)
        if kind == layer
    }
    confirmed = plan.evidence.confirmed
    steps = {step.name: asdict(step) for step in confirmed if step.name in BESIDE}
    splits = [segment.splits for segment in plan.evidence.segments]
    return Row(
        layers,
        batch,
        "; ".join(f"{splits.count(s)}x {s}" for s in dict.fromkeys(splits)),
        plan.predicted.memory_bytes,
        len(of_layer),
        {"cfp": asdict(confirmed[0]), **steps},
        "",
    )


def render(rows: list[Row], limit: int) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    lines = [
        "# Under a memory limit",
        "",
        made_by("bench.memory_limit"),
        "",
        f"LLaMA of size `small`, {sizes}, 4 virtual CPU devices, {bytes_text(limit)} each. "
        "Milliseconds of a full step, run in turn; in brackets MiB by the compiler; struck out "
        "what exceeds the limit. `mixed`: ways to split the layer that CFP's plan uses at once.",
        "",
        "| layers | batch | CFP | predicted MiB (error) | mixed | "
        + " | ".join(BESIDE)
        + " | ZeRO-1 / CFP |",
        "|---|---|---|---|---|" + "---|" * (len(BESIDE) + 1),
    ]
    errors = []
    for row in rows:
        if row.why:
            lines.append(f"| {row.layers} | {row.batch} | {row.why} |")
            continue
        ours, zero1 = row.steps["cfp"], row.steps["zero1"]
        off = row.predicted_bytes / ours["memory_bytes"] - 1
        errors.append(abs(off))
        cells = [_cell(row.steps[name], limit) for name in BESIDE]
        lines.append(
            f"| {row.layers} | {row.batch} | {_cell(ours, limit)} | "
            f"{row.predicted_bytes / 2**20:.1f} ({off:+.1%}) | {row.mixed} | {' | '.join(cells)} | "
            f"{_ratio(zero1, ours)} |"
        )
    if errors:
        lines += [
            "",
            f"Memory, predicted against compiled: median error "
            f"{statistics.median(errors):.1%}, worst {max(errors):.1%}.",
        ]
    lines += ["", "CFP's plans:", ""]
    lines += [f"- {row.layers} layers, batch {row.batch}: {row.splits}" for row in rows]
    return "\n".join(lines) + "\n"


def _ratio(step: dict[str, Any], to: dict[str, Any]) -> str:
    return "-" if step["measured_s"] is None else f"{step['measured_s'] / to['measured_s']:.2f}"


def _cell(step: dict[str, Any], limit: int) -> str:
    if step["measured_s"] is None:
        return "-"
    text = f"{step['measured_s'] * 1e3:.1f} ({step['memory_bytes'] / 2**20:.1f})"
    return text if step["memory_bytes"] <= limit else f"~~{text}~~"


if __name__ == "__main__":
    main()
