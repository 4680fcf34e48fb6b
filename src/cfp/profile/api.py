"""The entry: an analysed step and a mesh in, a `Profile` out."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from jax.sharding import AbstractMesh, Mesh

from cfp.analysis import Analysis
from cfp.cluster import Team
from cfp.errors import CfpError
from cfp.layouts import AnyMesh, auto_mesh
from cfp.links.network import Network
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.network import find_network
from cfp.profile.measure.progress import Progress
from cfp.profile.measure.rounds import USUAL, Effort
from cfp.profile.measure.store import TUNED_FOLDER, Store, store_folder
from cfp.profile.profile import Profile, pack_profile, unpack_profile
from cfp.profile.profiler import measure_segments
from cfp.profile.programs.key import key_of
from cfp.profile.programs.machine import Machine
from cfp.profile.runners import stand_in
from cfp.profile.runners.in_process import InProcessRunner
from cfp.profile.runners.local_devices import default_threads
from cfp.profile.runners.process import ProcessRunner
from cfp.profile.runners.runner import Runner
from cfp.profile.runners.shared_decision import can_isolate, decide_together, open_runner
from cfp.profile.runners.stand_in import stand_in_runner
from cfp.profile.runners.team_runner import TeamRunner
from cfp.trace.runtime import without_mesh


def profile(
    analysis: Analysis,
    mesh: AnyMesh,
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
    network: Network | None = None,
) -> Profile:
    """Measures the segments of a step on the devices of a mesh, and what lies between them.

    What the store in `cache_dir` has is not measured again. `exhaustive` measures every option of
    every segment instead of those that may be best. Optimizer state (ZeRO-1) and parameters (FSDP)
    split further are tried with the fastest option of a segment, and with more of them where that
    gains; `lean` tries them with several anyway, which `memory_limit_bytes` does by itself where
    the fastest options exceed it. After `budget_s` seconds it returns what was measured.

    Programs run in a worker process unless `isolate` is False; by default they do where devices can
    be opened twice.

    On a mesh of several processes every process calls this alike; process 0 decides, and has the
    store. `team` is those processes where they have met before (`cfp.cluster.rendezvous`).

    A `jax.sharding.AbstractMesh` has no devices: local ones stand in for them, and communication is
    replayed on the `network` (`cfp.links.find_links`).
    """
    mesh = auto_mesh(mesh)
    _check(analysis, mesh)
    budget = Budget.of(budget_s)
    manner = Manner(effort=effort or USUAL, progress=progress or Progress(), budget=budget)
    scope = Scope(lean=lean, exhaustive=exhaustive, memory_limit_bytes=memory_limit_bytes)

    def decide(team: Team | None) -> Profile:
        with open_campaign(
            mesh,
            cache_dir=cache_dir,
            isolate=isolate,
            manner=manner,
            team=team,
            network=network,
        ) as campaign:
            return measure_segments(campaign, analysis, mesh, scope)

    return decide_together(
        mesh,
        team,
        isolate,
        decide,
        pack=pack_profile,
        unpack=lambda data: unpack_profile(data, analysis),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a campaign measures: how thoroughly, who is told, and within which time."""

    effort: Effort = USUAL
    progress: Progress = field(default_factory=Progress)
    budget: Budget = field(default_factory=lambda: Budget.of(None))


@contextmanager
def open_campaign(
    mesh: AnyMesh,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    isolate: bool | None = None,
    manner: Manner | None = None,
    team: Team | None = None,
    network: Network | None = None,
) -> Iterator[Campaign]:
    """Opens the store and a runner for the devices of a mesh, to measure segments and full steps
    with.

    Options as of `profile`, three of them in the `manner`. With a `team`, whose leader this is, all
    its processes measure. While it is open, no mesh of `jax.set_mesh` is in force: programs have
    their own."""
    manner = manner or Manner()
    check_network(mesh, network)
    local = stand_in.GPU.find() if isinstance(mesh, AbstractMesh) else None
    if isinstance(mesh, AbstractMesh):
        assert local is not None
        tuned = tuned_folder(Machine.of(mesh, local), cache_dir)
        runner: Runner = stand_in_runner(stand_in.GPU, local, mesh, tuned)
    else:
        runner = _runner(mesh, team, isolate)
    runner.ends = manner.budget.ends
    try:
        with without_mesh(), Store.open(cache_dir, manner.budget.ends) as store:
            machine = Machine.of(mesh, local)
            if team is not None and isinstance(mesh, Mesh):
                manner.progress.stage("measuring the network")
                machine = machine.on(mesh, team.host_numbers())
                found = find_network(runner, store, machine, mesh)
                machine = replace(machine, network=found)
            yield new_campaign(machine, runner, store, manner, network)
    finally:
        runner.close()


# what a compiler needs of the devices: the cores on a CPU; a GPU's own time, on which XLA tries
# kernels. What runs meanwhile seems slower, by as much as half of a segment (seen on an H200)
COMPILES_WITH = ("cpu", "gpu")


def new_campaign(
    machine: Machine,
    runner: Runner,
    store: Store,
    manner: Manner,
    network: Network | None = None,
) -> Campaign:
    """Returns a campaign for programs on this machine; the runner learns when the budget ends."""
    overlap = machine.platform not in COMPILES_WITH
    runner.ends = manner.budget.ends
    effort, progress, budget = manner.effort, manner.progress, manner.budget
    if machine.platform != "cpu":  # where a program has all cores while it is compiled
        budget = replace(budget, abreast=default_threads(machine.platform))
    return Campaign(runner, store, machine, effort, progress, overlap, budget, network)


def tuned_folder(machine: Machine, cache_dir: str | os.PathLike[str] | None) -> Path:
    """Returns where XLA keeps its choices of kernels, for these devices and this compiler: XLA
    itself does not look whether another version made them."""
    return store_folder(cache_dir) / TUNED_FOLDER / key_of(machine.of_any_mesh, "tuned")[:16]


def _runner(mesh: Mesh, team: Team | None, isolate: bool | None) -> Runner:
    """Returns what runs programs: all processes of a team, a worker, or this process."""
    if team is not None:
        return TeamRunner(team, functools.partial(open_runner, team, mesh, isolate))
    if can_isolate(mesh) if isolate is None else isolate:
        return ProcessRunner(mesh)
    return InProcessRunner(mesh)


def check_network(mesh: AnyMesh, network: Network | None) -> None:
    """Refuses a mesh without devices that has no links, and links for a mesh that is measured."""
    if isinstance(mesh, AbstractMesh) and network is None:
        raise CfpError(
            "A mesh that is not there needs `links`, which say what communication takes: name one "
            f"for each of its axes, {', '.join(map(str, mesh.axis_names))} (`cfp links` lists "
            "them)."
        )
    if isinstance(mesh, Mesh) and network is not None:
        raise CfpError(
            "`links` are for a mesh that is not there: the devices of this one are measured. Leave "
            "them out, or give a jax.sharding.AbstractMesh."
        )


def _check(analysis: Analysis, mesh: AnyMesh) -> None:
    if analysis.mesh_shape != mesh.axis_sizes:
        raise CfpError(
            f"The step was analysed for a mesh of {analysis.mesh_shape}, not "
            f"{mesh.axis_sizes}: analyse it for this mesh."
        )
