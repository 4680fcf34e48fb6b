"""The entry: an analysed step and a mesh in, a `Profile` out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.errors import CfpError
from cfp.profile.campaign import Campaign
from cfp.profile.in_process import InProcessRunner
from cfp.profile.process import ProcessRunner
from cfp.profile.profile import Profile
from cfp.profile.profiler import Scope, measure_segments, new_campaign
from cfp.profile.progress import Progress
from cfp.profile.store import Store
from cfp.profile.turns import Effort


def profile(
    analysis: Analysis,
    mesh: Mesh,
    *,
    budget_s: float | None = None,
    exhaustive: bool = False,
    lean: bool = False,
    memory_limit_bytes: float | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    isolate: bool | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measures the segments of a step on the devices of a mesh, and what lies between them.

    What the store in `cache_dir` has is not measured again. `exhaustive` measures every option of
    every segment instead of those that may be best. Optimizer state (ZeRO-1) and parameters (FSDP)
    split further are tried with the fastest option of a segment, and with more of them where that
    gains; `lean` tries them with several anyway, which `memory_limit_bytes` does by itself where
    the fastest options exceed it. After `budget_s` seconds what there is is returned.

    Programs run in a worker process unless `isolate` is False; by default they do where devices can
    be opened twice.
    """
    _check(analysis, mesh, budget_s)
    scope = Scope(
        lean=lean,
        exhaustive=exhaustive,
        budget_s=budget_s,
        memory_limit_bytes=memory_limit_bytes,
    )
    with open_campaign(
        mesh, cache_dir=cache_dir, isolate=isolate, effort=effort, progress=progress
    ) as campaign:
        return measure_segments(campaign, analysis, mesh, scope)


@contextmanager
def open_campaign(
    mesh: Mesh,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    isolate: bool | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Iterator[Campaign]:
    """The store and a runner for the devices of a mesh, to measure segments and full steps with.

    Options as of `profile`."""
    apart = _can_isolate(mesh) if isolate is None else isolate
    runner: ProcessRunner | InProcessRunner = (
        ProcessRunner(mesh) if apart else InProcessRunner(mesh)
    )
    try:
        with Store.open(cache_dir) as store:
            yield new_campaign(mesh, runner, store, effort or Effort(), progress or Progress())
    finally:
        runner.close()


def _can_isolate(mesh: Mesh) -> bool:
    """Another process can have the devices: always CPUs, GPUs unless this one has taken their
    memory in advance, never TPUs."""
    device: Any = mesh.devices.flat[0]
    if device.platform == "cpu":
        return True
    if device.platform != "gpu":
        return False
    taken = device.memory_stats() or {}
    return not taken.get("pool_bytes", 0) > taken.get("bytes_limit", 0) / 2


def _check(analysis: Analysis, mesh: Mesh, budget_s: float | None) -> None:
    if analysis.mesh_shape != mesh.devices.shape:
        raise CfpError(
            f"The step was analysed for a mesh of {analysis.mesh_shape}, not "
            f"{mesh.devices.shape}: analyse it for this mesh."
        )
    if budget_s is not None and not budget_s > 0:
        raise CfpError(f"`budget` is {budget_s:g} s: give a time such as '5m', or none.")
