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
from cfp.cluster.share import shareable
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
    if jax.process_count() == 1:
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
        with contextlib.suppress(LinkLost):  # why, the leader's last words say: they are read next
            link.send(*message)

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
        group=Group(f"{_host(team.leader_address)}:{port}", team.count, team.index),
    )


def can_isolate(mesh: Mesh) -> bool:
    """Another process can have the devices of this one."""
    return shareable(next(d for d in mesh.devices.flat if d.process_index == jax.process_index()))


def _host(address: str) -> str:
    """As it stands before a port."""
    return f"[{address}]" if ":" in address else address


def _check(mesh: Mesh) -> None:
    missing = set(range(jax.process_count())) - {d.process_index for d in mesh.devices.flat}
    if missing:
        raise CfpError(
            f"The mesh has no device of process {', '.join(map(str, sorted(missing)))}: make it of "
            "devices of every process, or start fewer processes."
        )
