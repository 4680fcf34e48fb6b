"""Predicted memory of plans for 8 H200s, beside XLA's figure for their full steps.

XLA compiles for a GPU without one or a driver, from a description of it:

    pip install "jax[cuda12]==0.10.2"
    JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 XLA_FLAGS=--xla_gpu_autotune_level=0 \
        python -m bench.gpu.memory h200.txtpb

where `h200.txtpb` is XLA's file of that name (xla/backends/gpu/target_config/specs), less the lines
whose fields the installed version does not know (`collective_memory_granularity`). Without trying
kernels on a device the compiler chooses others than with one, so what a step needs may differ by
what these need for themselves.
"""

from __future__ import annotations

import argparse
import functools
import itertools
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
LEVELS = (Keep.AS_WRITTEN, Keep.CONTRACTIONS, Keep.INPUTS)

Row = tuple[str, State, Keep, Compared]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="XLA's description of the GPU")
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    compiler = Compiler(mesh_of(options.target), "cuda")
    rows: list[Row] = []
    for model in options.models.split(","):
        sizes = {"layers": options.layers, "batch": options.batch, "dtype": "bfloat16"}
        step, args = make_step(config(model, SIZES[model], **sizes), abstract=True)
        donating = jax.jit(step, donate_argnums=0)
        for state, keep in itertools.product(State, LEVELS):
            began = time.monotonic()
            choose = functools.partial(along_the_batch, state=state, keep=keep)
            found = compiler.compare(donating, args, choose)
            rows.append((model, state, keep, found))
            seconds = time.monotonic() - began
            said = f"{model} {state.value}, {keep.value}: {found.error:+.1%} in {seconds:.0f} s"
            print(said, flush=True)
            options.out.write_text(render(rows, options))


def mesh_of(target: Path) -> Mesh:
    """Returns a mesh of devices that are not there."""
    name = f"1x{DEVICES}x1"
    there = topologies.get_topology_desc(
        platform="cuda", topology_name=name, topology=name, target_config=target.read_text()
    )
    return Mesh(np.array(there.devices), ("x",))


def along_the_batch(kind: Kind, state: State, keep: Keep) -> Option:
    """Returns the option of a kind that splits the batch in all blocks that have it; its first
    candidate is the rows'."""
    combo = (0,) * len(kind.strategies)
    return Option(combo, state, keep if keep in kind.levels else Keep.AS_WRITTEN)


def render(rows: list[Row], options: argparse.Namespace) -> str:
    errors = [abs(found.error) for *_, found in rows]
    lines = [
        "# Predicted memory on GPUs",
        "",
        made_by("bench.gpu.memory"),
        "",
        f"Models of the paper's sizes with {options.layers} layers, bfloat16, batch "
        f"{options.batch}, for {DEVICES} H200s. All segments split the batch; the rows differ in "
        "how training state is placed and in what is kept for the backward pass. XLA compiled the "
        "programs of the segments and the full step from a description of the GPU, without one; "
        "nothing ran. GiB of one device.",
        "",
        f"Error: {statistics.median(errors):.1%} median, {max(errors):.1%} worst.",
        "",
        "| model | training state | keeps | predicted | the compiler's | error |",
        "|---|---|---|---|---|---|",
    ]
    for model, state, keep, found in rows:
        numbers = f"{found.predicted_bytes / GIB:.2f} | {found.compiled_bytes / GIB:.2f}"
        way = f"{state.value} | {keep.value}"
        lines.append(f"| {model} | {way} | {numbers} | {found.error:+.1%} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
