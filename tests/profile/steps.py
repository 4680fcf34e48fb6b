"""A small training step to profile, and a planner that does: `python -m tests.profile.steps`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import cfp
from cfp.layouts.state import State
from cfp.profile.api import Manner, new_campaign
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.progress import Progress
from cfp.profile.measure.rounds import Effort
from cfp.profile.measure.store import Store
from cfp.profile.profile import Profile
from cfp.profile.profiler import FindLeading, measure_segments
from cfp.profile.programs.machine import Machine
from cfp.profile.runners.process import ProcessRunner
from cfp.profile.runners.runner import Runner

FAULTY = [sys.executable, str(Path(__file__).parent / "runners" / "faulty_worker.py")]
# nothing is cut off, so that the programs are always the same ones
EFFORT = Effort(warmups=1, repeats=3, wave=2, cutoff=1e9, hang_s=1.5)


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = layer(w, x)
    return jnp.mean(x**2)


def step(ws: Any, x: Any) -> Any:
    gradients = jax.grad(loss)(ws, x)
    return [w - 0.1 * gradient for w, gradient in zip(ws, gradients, strict=True)]


def analysed(
    layers: int = 2, width: int = 16, dtype: str = "float32", mesh_shape: tuple[int, ...] = (2,)
) -> cfp.Analysis:
    """Two layers are one segment of two blocks, three ways each. More are a first, a last, and
    some alike between them."""
    shape: Any = jax.ShapeDtypeStruct
    ws = [shape((width, width), jnp.dtype(dtype)) for _ in range(layers)]
    return cfp.analyze(step, ws, shape((16, width), jnp.dtype(dtype)), mesh_shape=mesh_shape)


def mesh_of(*shape: int) -> Mesh:
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), tuple("xy"[: len(shape)]))


def measured(
    runner: Runner,
    folder: Path,
    *,
    analysis: cfp.Analysis | None = None,
    effort: Effort = EFFORT,
    progress: Progress | None = None,
    budget_s: float | None = None,
    full_steps: int = 0,
    exhaustive: bool = True,
    states: tuple[State, ...] = (State.BLOCK,),
    memory_limit_bytes: float | None = None,
    leading: FindLeading | None = None,
) -> Profile:
    """Every option of the step, or those that may be best."""
    analysis = analysed() if analysis is None else analysis
    with Store.open(folder) as store:
        mesh = mesh_of(*analysis.mesh_shape)
        scope = Scope(states=states, exhaustive=exhaustive, memory_limit_bytes=memory_limit_bytes)
        budget = Budget.of(budget_s).followed_by(full_steps, 0)
        telling = progress or Progress()
        manner = Manner(effort=effort, progress=telling, budget=budget)
        campaign = new_campaign(Machine.of(mesh), runner, store, manner)
        return measure_segments(campaign, analysis, mesh, scope, leading)


if __name__ == "__main__":
    with ProcessRunner(mesh_of(2), command=FAULTY) as runner:
        print(measured(runner, Path(sys.argv[1])).missing)
