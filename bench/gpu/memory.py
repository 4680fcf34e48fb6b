"""Predicted memory of random plans for 8 H200s, beside XLA's figure for their full steps.

XLA compiles for a GPU without one or a driver, from a description of it:

    pip install "jax[cuda12]==0.10.2"
    JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 XLA_FLAGS=--xla_gpu_autotune_level=0 \
        python -m bench.gpu.memory h200.txtpb

where `h200.txtpb` is XLA's file of that name (xla/backends/gpu/target_config/specs). Without trying
kernels on a device the compiler chooses others than with one, so what a step needs may differ by
what these need for themselves.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import time
from pathlib import Path

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from bench.compiled_memory import Compared, Compiler
from bench.environment import made_by
from bench.gpu.cases import SIZES
from cfp.layouts.state import State
from cfp.models import config, make_step
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep

OUT = Path(__file__).parents[1] / "results" / "gpu_memory.md"
DEVICES = 8
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="XLA's description of the GPU")
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--plans", type=int, default=8, help="of every model")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    compiler = Compiler(mesh_of(options.target), "cuda")
    rows: list[tuple[str, Compared]] = []
    for model in options.models.split(","):
        sizes = {"layers": options.layers, "batch": options.batch, "dtype": "bfloat16"}
        step, args = make_step(config(model, SIZES[model], **sizes), abstract=True)
        donating = jax.jit(step, donate_argnums=0)
        for number in range(options.plans):
            began = time.monotonic()
            choose = functools.partial(drawn, draw=random.Random(number))
            found = compiler.compare(donating, args, choose)
            rows.append((model, found))
            seconds = time.monotonic() - began
            print(f"{model} {number}: {found.error:+.1%} in {seconds:.0f} s", flush=True)
            options.out.write_text(render(rows, options))


def mesh_of(target: Path) -> Mesh:
    """Returns a mesh of devices that are not there."""
    name = f"1x{DEVICES}x1"
    there = topologies.get_topology_desc(
        platform="cuda", topology_name=name, topology=name, target_config=target.read_text()
    )
    return Mesh(np.array(there.devices), ("x",))


def drawn(kind: Kind, draw: random.Random) -> Option:
    """Returns an option of a kind, of all that there are alike."""
    combo = tuple(draw.randrange(len(choices)) for choices in kind.strategies)
    levels = (Keep.AS_WRITTEN, *sorted(kind.levels, key=lambda level: level.value))
    return Option(combo, draw.choice(list(State)), draw.choice(levels))


def render(rows: list[tuple[str, Compared]], options: argparse.Namespace) -> str:
    errors = [abs(found.error) for _, found in rows]
    lines = [
        "# Predicted memory on GPUs",
        "",
        made_by("bench.gpu.memory"),
        "",
        f"Random plans for {DEVICES} H200s of models of the paper's sizes with {options.layers} "
        f"layers, bfloat16, batch {options.batch}; all layers alike. XLA compiled the programs of "
        "the segments and the full step from a description of the GPU, without one; nothing ran. "
        "GiB of one device.",
        "",
        f"Error: {statistics.median(errors):.1%} median, {max(errors):.1%} worst.",
        "",
        "| model | plan | predicted | the compiler's | error |",
        "|---|---|---|---|---|",
    ]
    for model, found in rows:
        numbers = f"{found.predicted_bytes / GIB:.2f} | {found.compiled_bytes / GIB:.2f}"
        lines.append(f"| {model} | {found.show()} | {numbers} | {found.error:+.1%} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
