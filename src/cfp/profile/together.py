"""One decision by many processes: process 0 decides, the others help and learn the result.

    result = together(mesh, team, isolate, decide, pack, unpack)

Every process calls it alike. On process 0 `decide` runs, and may measure with all of them
(`cfp.profile.api.open_campaign`); what it returns, or raises, all processes return, or raise.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from cfp.cluster import LinkLost, Team, TeamLost, TeamOver, meet
from cfp.errors import CfpError
from cfp.profile.in_process import InProcessRunner
from cfp.profile.job import Group
from cfp.profile.line_up import default_threads
from cfp.profile.member import Member, Startable
from cfp.profile.process import ProcessRunner

T = TypeVar("T")


def together(
    mesh: Mesh,
    team: Team | None,
    isolate: bool | None,
    decide: Callable[[Team | None], T],
    *,
    pack: Callable[[T], Any] = lambda value: value,
    unpack: Callable[[Any], T] = lambda value: value,
) -> T:
    """`team` is made here where there is none and the mesh is of several processes. `pack` makes of
    a result what can be sent, `unpack` the reverse."""
    if len(_processes(mesh)) == 1:
        return decide(None)
    _check(mesh)
    with meet() if team is None else contextlib.nullcontext(team) as team:
        if not team.leads:
            return unpack(follow(team, mesh, isolate))
        try:
            result = decide(team)
        except TeamLost:
            raise  # all have been told
        except CfpError as error:
            team.end(str(error))
            raise
        except BaseException as error:
            team.end(f"Process 0 ended with {type(error).__name__}.", lost=True)
            raise
        team.tell("result", pack(result))
        return result


def follow(team: Team, mesh: Mesh, isolate: bool | None) -> Any:
    """Does what the leader says until it tells a result."""
    link = team.links[0]

    def send(message: tuple[Any, ...]) -> None:
        try:
            link.send(*message)
        except LinkLost as lost:
            raise team.gone(0, str(lost)) from None

    member = Member(lambda port: open_runner(team, mesh, isolate, port), send)

    def receive(timeout_s: float | None) -> tuple[Any, ...] | None:
        got = team.inbox.get(timeout_s)
        if got is None:
            return None
        team.doing = member.doing
        match got[1]:
            case None:
                raise team.gone(0)
            case ("over", reason, lost):
                raise (TeamLost if lost else TeamOver)(reason)
        return got[1]

    def watch() -> None:
        link.wait()
        member.kill()

    threading.Thread(target=watch, daemon=True).start()
    return member.serve(receive)


def open_runner(team: Team, mesh: Mesh, isolate: bool | None, port: int) -> Startable:
    """This process's part of a runner; the workers meet at a port of process 0."""
    if not (can_isolate(mesh) if isolate is None else isolate):
        return InProcessRunner(mesh)
    sharing = team.hosts.count(team.hosts[team.index])
    return ProcessRunner(
        mesh,
        compile_threads=default_threads(mesh, sharing),
        group=Group(f"{team.leader_address}:{port}", team.count, team.index),
    )


def can_isolate(mesh: Mesh) -> bool:
    """Another process can have the devices: always CPUs, GPUs unless this one has taken their
    memory in advance, never TPUs."""
    device: Any = next(d for d in mesh.devices.flat if d.process_index == jax.process_index())
    if device.platform == "cpu":
        return True
    if device.platform != "gpu":
        return False
    taken = device.memory_stats() or {}
    return not taken.get("pool_bytes", 0) > taken.get("bytes_limit", 0) / 2


def _processes(mesh: Mesh) -> set[int]:
    return {device.process_index for device in mesh.devices.flat}


def _check(mesh: Mesh) -> None:
    missing = set(range(jax.process_count())) - _processes(mesh)
    if missing:
        raise CfpError(
            f"The mesh has no device of process {', '.join(map(str, sorted(missing)))}: make it of "
            "devices of every process, or start fewer processes."
        )
