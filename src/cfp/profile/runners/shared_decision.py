"""One decision by many processes: process 0 decides, the others help and learn the result.

    result = decide_together(mesh, team, isolate, decide, pack, unpack)

Every process calls it alike. On process 0 `decide` runs, and may measure with all of them
(`cfp.profile.api.open_campaign`); what it returns, or raises, all processes return, or raise.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh

from cfp.cluster import ConnectionLost, Team, TeamLost, TeamOver, meet
from cfp.cluster.join import shareable
from cfp.cluster.ports import join_address
from cfp.cluster.team import Over
from cfp.cluster.wire import Message
from cfp.errors import CfpError
from cfp.layouts import AnyMesh
from cfp.profile.runners.in_process import InProcessRunner
from cfp.profile.runners.job import WorkerGroup
from cfp.profile.runners.local_devices import default_threads, platform_of
from cfp.profile.runners.messages import Open, Result
from cfp.profile.runners.process import ProcessRunner
from cfp.profile.runners.team_member import Member, Startable
from cfp.trace.runtime import without_mesh

T = TypeVar("T")


def decide_together(
    mesh: AnyMesh,
    team: Team | None,
    isolate: bool | None,
    decide: Callable[[Team | None], T],
    *,
    pack: Callable[[T], bytes],
    unpack: Callable[[bytes], T],
) -> T:
    """Returns what `decide` returns, the same in all processes. A `team` is made here where there
    is none and the mesh is of several processes. `pack` makes of a result what can be sent,
    `unpack` the reverse."""
    if isinstance(mesh, AbstractMesh) or jax.process_count() == 1:
        return decide(None)
    _check(mesh)
    with meet() if team is None else contextlib.nullcontext(team) as team:
        if not team.leads:
            with without_mesh():
                found = follow(team, mesh, isolate)
            return unpack(found)
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
        team.tell(Result(pack(result)))
        return result


def follow(team: Team, mesh: Mesh, isolate: bool | None) -> bytes:
    """Does what the leader says until it tells a result, which is returned."""
    connection = team.connections[0]

    def send(message: Message) -> None:
        with contextlib.suppress(
            ConnectionLost
        ):  # why, the leader's last words say: they are read next
            connection.send(message)

    member = Member(lambda opened: open_runner(team, mesh, isolate, opened), send)

    def receive(timeout_s: float | None) -> Message | None:
        got = team.inbox.get(timeout_s)
        if got is None:
            return None
        team.doing = member.doing
        message = got[1]
        if message is None:
            raise team.gone(0)
        if isinstance(message, Over):
            raise (TeamLost if message.lost else TeamOver)(message.reason)
        return message

    def watch() -> None:
        connection.wait()
        member.kill()

    threading.Thread(target=watch, daemon=True).start()
    return member.serve(receive)


def open_runner(team: Team, mesh: Mesh, isolate: bool | None, opened: Open) -> Startable:
    """Returns this process's part of a runner; the workers meet at a port of process 0."""
    if not (can_isolate(mesh) if isolate is None else isolate):
        return InProcessRunner(mesh)
    sharing = team.hosts.count(team.hosts[team.index])
    return ProcessRunner(
        mesh,
        compile_threads=default_threads(platform_of(mesh), sharing),
        group=WorkerGroup(
            join_address(team.leader_address, opened.port),
            team.count,
            team.index,
            team.listens,
            team.key(f"workers {opened.generation}"),
        ),
    )


def can_isolate(mesh: Mesh) -> bool:
    """Returns whether another process can have the devices of this one."""
    return shareable(next(d for d in mesh.devices.flat if d.process_index == jax.process_index()))


def _check(mesh: Mesh) -> None:
    missing = set(range(jax.process_count())) - {d.process_index for d in mesh.devices.flat}
    if missing:
        raise CfpError(
            f"The mesh has no device of process {', '.join(map(str, sorted(missing)))}: make it of "
            "devices of every process, or start fewer processes."
        )
