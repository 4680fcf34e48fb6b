"""A training script, as a user runs it again and again.

    python -m tests.planning.jit_script FOLDER [--stored]

With `--stored` it may not measure: opening a campaign is an error. It prints the losses.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
from jax.sharding import Mesh

import cfp
from cfp import planner
from cfp.profile import Effort
from tests.plan.steps import mesh_of, mlp_args, mlp_step

EFFORT = Effort(warmups=1, repeats=3)


def train(folder: str, mesh: Mesh, steps: int = 3, **options: Any) -> tuple[list[float], Any]:
    """Trains for a few steps; returns the losses and the jitted step."""
    step = cfp.jit(mlp_step, mesh=mesh, cache_dir=folder, audit=1, effort=EFFORT, **options)
    params, x, y = mlp_args()
    losses = []
    for _ in range(steps):
        params, loss = step(params, x, y)
        losses.append(float(loss))
    return losses, step


def forbid(*_: object, **__: object) -> Any:
    raise AssertionError("a campaign was opened: something is measured")


def main(folder: str, *flags: str) -> None:
    if "--stored" in flags:
        planner.open_campaign = forbid
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    losses, step = train(folder, mesh_of(2))
    print(json.dumps({"losses": losses, "plan": step.plan.show(), "compiled": len(compiled)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
