"""The entry: an analysed step and a mesh in, a `Profile` out."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.cluster import Team
from cfp.errors import CfpError
from cfp.profile.boundary import find_crossings
from cfp.profile.campaign import Campaign
from cfp.profile.in_process import InProcessRunner
from cfp.profile.kinds import find_kinds
from cfp.profile.machine import Machine
from cfp.profile.network import find_network
from cfp.profile.process import ProcessRunner
from cfp.profile.profile import Profile
from cfp.profile.profiler import measure_segments, new_campaign
from cfp.profile.progress import Progress
from cfp.profile.runner import Runner
from cfp.profile.scope import Scope
from cfp.profile.store import Store
from cfp.profile.team_runner import TeamRunner
from cfp.profile.together import can_isolate, open_runner, together
from cfp.profile.turns import USUAL, Effort


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
    team: Team | None = None,
) -> Profile:
    """Measures the segments of a step on the devices of a mesh, and what lies between them.

    What the store in `cache_dir` has is not measured again. `exhaustive` measures every option of
    every segment instead of those that may be best. Optimizer state (ZeRO-1) and parameters (FSDP)
    split further are tried with the fastest option of a segment, and with more of them where that
    gains; `lean` tries them with several anyway, which `memory_limit_bytes` does by itself where
    the fastest options exceed it. After `budget_s` seconds what there is is returned.

    Programs run in a worker process unless `isolate` is False; by default they do where devices can
    be opened twice.

    On a mesh of several processes every process calls this alike; process 0 decides, and has the
    store. `team` is those processes where they have met before (`cfp.cluster.meet`).
    """
    _check(analysis, mesh, budget_s)
    scope = Scope(
        lean=lean,
        exhaustive=exhaustive,
        budget_s=budget_s,
        memory_limit_bytes=memory_limit_bytes,
    )

    def decide(team: Team | None) -> Profile:
        with open_campaign(
            mesh, cache_dir=cache_dir, isolate=isolate, effort=effort, progress=progress, team=team
        ) as campaign:
            return measure_segments(campaign, analysis, mesh, scope)

    return together(
        mesh,
        team,
        isolate,
        decide,
        pack=_without_programs,
        unpack=lambda found: _with_programs(found, analysis),
    )


@contextmanager
def open_campaign(
    mesh: Mesh,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    isolate: bool | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
    team: Team | None = None,
) -> Iterator[Campaign]:
    """The store and a runner for the devices of a mesh, to measure segments and full steps with.

    Options as of `profile`. With a `team`, whose leader this is, all its processes measure."""
    progress = progress or Progress()
    runner: Runner
    if team is not None:
        runner = TeamRunner(team, functools.partial(open_runner, team, mesh, isolate))
    elif can_isolate(mesh) if isolate is None else isolate:
        runner = ProcessRunner(mesh)
    else:
        runner = InProcessRunner(mesh)
    try:
        with Store.open(cache_dir) as store:
            machine = Machine.of(mesh)
            if team is not None:
                progress.stage("measuring the network")
                machine = machine.on(mesh, team.host_numbers())
                network = find_network(runner, store, machine, mesh)
                machine = replace(machine, network=network)
            yield new_campaign(machine, runner, store, effort or USUAL, progress)
    finally:
        runner.close()


def _without_programs(found: Profile) -> Profile:
    """What can be sent to a process that has the same analysis."""
    nothing: Any = None
    segments = [replace(segment, kind=nothing) for segment in found.segments]
    return replace(found, segments=tuple(segments), crossings=())


def _with_programs(found: Profile, analysis: Analysis) -> Profile:
    kinds = find_kinds(analysis)
    pairs = zip(found.segments, kinds, strict=True)
    segments = tuple(replace(segment, kind=kind) for segment, kind in pairs)
    return replace(found, segments=segments, crossings=find_crossings(analysis, kinds))


def _check(analysis: Analysis, mesh: Mesh, budget_s: float | None) -> None:
    if analysis.mesh_shape != mesh.devices.shape:
        raise CfpError(
            f"The step was analysed for a mesh of {analysis.mesh_shape}, not "
            f"{mesh.devices.shape}: analyse it for this mesh."
        )
    if budget_s is not None and not budget_s > 0:
        raise CfpError(f"`budget` is {budget_s:g} s: give a time such as '5m', or none.")
