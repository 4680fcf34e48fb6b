"""What `cfp.jit` adds to the start of a script whose plan is kept: tracing once more, and reading.

A model's step is planned once, into a store of its own. Then two fresh processes get it ready to
be compiled, one with `jax.jit` and one with `cfp.jit`, which finds the plan and may not measure.
What they take is counted in seconds of CPU time, so that other work on the machine does not count:

    ready   tracing and lowering the step; of `cfp.jit` also analysing it, finding the plan and
            binding it to the step
    added   the difference

`python -m bench.jit_start` writes bench/results/jit_start.md and exits with 1 where more than
`MOST_S` are added.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

import cfp
from bench.environment import environment
from cfp import models, planner
from cfp.devices import make_mesh

OUT = Path(__file__).parent / "results" / "jit_start.md"
MOST_S = 3.0  # that may be added: what one does not notice beside compiling
MODELS = (("gpt", 2), ("gpt", 24), ("llama", 32))
DEVICES = 4
BUDGET_S = 120.0


def make(name: str, layers: int) -> tuple[Any, Any]:
    step, args = models.make_step(models.config(name, "tiny", layers=layers))
    return step, jax.eval_shape(lambda: args)


def ready_s(how: str, name: str, layers: int, store: str) -> float:
    """Returns the CPU seconds until the step is lowered, in this process."""
    mesh = make_mesh((DEVICES,), "cpu")
    step, args = make(name, layers)
    if how == "cfp":
        vars(planner)["open_campaign"] = _refuse  # the plan must come from the store
        jitted = cfp.jit(step, mesh=mesh, cache_dir=store, audit=0, budget=BUDGET_S, progress=False)
    else:
        jitted = jax.jit(step)
    start = time.process_time()
    jitted.lower(*args)
    return time.process_time() - start


def _refuse(*_: object, **__: object) -> Any:
    raise AssertionError("the plan was not found: something is measured")


def plan_once(name: str, layers: int, store: str) -> None:
    """Plans a step into the store."""
    mesh = make_mesh((DEVICES,), "cpu")  # before JAX starts
    step, args = make(name, layers)
    cfp.jit(step, mesh=mesh, cache_dir=store, audit=0, budget=BUDGET_S).lower(*args)


def in_a_process(*words: str) -> str:
    command = [sys.executable, "-m", "bench.jit_start", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> int:
    rows, most_s = [], 0.0
    with tempfile.TemporaryDirectory() as store:
        for name, layers in MODELS:
            of = [name, str(layers), store]
            in_a_process("--do", "plan", *of)
            plain, ours = (json.loads(in_a_process("--do", how, *of)) for how in ("jax", "cfp"))
            most_s = max(most_s, ours - plain)
            rows.append(f"| {name} | {layers} | {plain:.2f} | {ours:.2f} | {ours - plain:.2f} |")
            print(rows[-1], flush=True)
    OUT.write_text(
        "# What `cfp.jit` adds to a start\n\n"
        f"`python -m bench.jit_start`, {environment()}.\n\n"
        "CPU seconds until the step of a `tiny` model, its layers unrolled, can be compiled, on a "
        f"mesh of {DEVICES}: by `jax.jit`, and by `cfp.jit` whose plan an earlier process kept. "
        "Nothing is compiled for measuring.\n\n"
        "| model | layers | jax.jit | cfp.jit | added |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\nAt most {MOST_S:.0f} s may be added: {'met' if most_s <= MOST_S else 'missed'}.\n"
    )
    return int(most_s > MOST_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--do", nargs=4, metavar=("HOW", "MODEL", "LAYERS", "STORE"))
    asked = parser.parse_args().do
    if asked is None:
        sys.exit(main())
    what, model, depth, folder = asked
    if what == "plan":
        plan_once(model, int(depth), folder)
    else:
        print(json.dumps(ready_s(what, model, int(depth), folder)))
