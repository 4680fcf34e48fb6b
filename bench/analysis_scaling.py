"""Time of the analysis by depth: flat per equation, apart from JAX's own tracing.

`python -m bench.analysis_scaling` writes bench/results/analysis_scaling.md and .png. The analysis
is single-threaded: run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax

from cfp.blocks import build_blocks
from cfp.models import config, make_step
from cfp.segments import build_segments
from cfp.trace import trace

RESULTS = Path(__file__).parent / "results"
TARGET_US = 100


class Row(NamedTuple):
    model: str
    layers: int
    equations: int
    jax_us: float  # per equation, as all that follow
    flatten_us: float
    blocks_us: float
    segments_us: float
    distinct: int

    @property
    def total_us(self) -> float:
        return self.flatten_us + self.blocks_us + self.segments_us


def measure(model: str, layers: int) -> Row:
    step, args = make_step(config(model, layers=layers), abstract=True)
    start = time.perf_counter()
    graph = trace(step, *args)
    flat = time.perf_counter()
    blocks = build_blocks(graph, (4,))
    grouped = time.perf_counter()
    segments = build_segments(graph, blocks)
    done = time.perf_counter()
    scale = 1e6 / len(graph.equations)
    return Row(
        model=model,
        layers=layers,
        equations=len(graph.equations),
        jax_us=graph.trace_s * scale,
        flatten_us=(flat - start - graph.trace_s) * scale,
        blocks_us=(grouped - flat) * scale,
        segments_us=(done - grouped) * scale,
        distinct=len(segments.kinds),
    )


def table(rows: list[Row], command: str) -> str:
    lines = [
        "# Analysis time by depth",
        "",
        f"`{command}`, JAX {jax.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, one core. Microseconds per equation; the target is "
        f"{TARGET_US} for the analysis. JAX's own tracing is shown beside it, not counted in it.",
        "",
        "| model | layers | equations | distinct segments | flatten | blocks | segments | "
        "analysis | JAX tracing |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.model} | {r.layers} | {r.equations:,} | {r.distinct} | {r.flatten_us:.0f} | "
        f"{r.blocks_us:.0f} | {r.segments_us:.0f} | **{r.total_us:.0f}** | {r.jax_us:.0f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n\n![time per equation](analysis_scaling.png)\n"


def plot(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for model in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == model]
        axes.plot([r.equations for r in mine], [r.total_us for r in mine], "o-", label=model)
    axes.axhline(TARGET_US, color="grey", linestyle=":", label="target")
    axes.set(xscale="log", xlabel="equations", ylabel="µs per equation", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 24, 48, 96, 192, 384])
    parser.add_argument("--models", nargs="+", default=["gpt", "moe", "llama"])
    options = parser.parse_args()
    measure(options.models[0], 2)  # imports and first-time rules
    rows: list[Row] = []
    for model in options.models:
        for layers in options.layers:
            print(f"{model} {layers} layers ...", file=sys.stderr, flush=True)
            rows.append(measure(model, layers))
    RESULTS.mkdir(exist_ok=True)
    text = table(rows, " ".join(["python -m bench.analysis_scaling", *sys.argv[1:]]))
    (RESULTS / "analysis_scaling.md").write_text(text)
    plot(rows, RESULTS / "analysis_scaling.png")
    print(text)


if __name__ == "__main__":
    main()
