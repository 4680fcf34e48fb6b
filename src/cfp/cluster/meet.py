"""How the processes of a JAX job find each other.

They share JAX's distributed runtime, so the leader broadcasts through it where it listens, and a
secret. Which of its names and addresses the others can reach only they can tell: they try all.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from cfp.cluster.link import Inbox, Link
from cfp.cluster.team import Team
from cfp.errors import CfpError
from cfp.version import VERSION

MEET_S = 60.0
_TRY_S = 5.0
_BYTES = 2048  # of the broadcast
_HELLO_BYTES = 512


@contextlib.contextmanager
def meet() -> Iterator[Team]:
    """All processes of the JAX job call it. The team is apart from JAX's runtime: it stays when
    that is shut down."""
    index, count = jax.process_index(), jax.process_count()
    team = _lead(count) if index == 0 else _follow(index)
    try:
        yield team
    finally:
        team.close()


def _lead(count: int) -> Team:
    links: dict[int, Link] = {}
    hosts = {0: socket.gethostname()}
    try:
        with _listen() as listener:
            _gather(listener, count, links, hosts)
    except BaseException:
        for link in links.values():
            link.close()
        raise
    names = tuple(hosts[process] for process in range(count))
    return _start(0, names, dict(sorted(links.items())))


def _gather(
    listener: socket.socket, count: int, links: dict[int, Link], hosts: dict[int, str]
) -> None:
    """Until all others have come; adds their links and the names of their hosts."""
    secret, port = secrets.token_hex(16), listener.getsockname()[1]
    _broadcast({"hosts": own_addresses(), "port": port, "secret": secret})
    deadline = time.monotonic() + MEET_S
    while len(links) < count - 1:
        listener.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            connected, _ = listener.accept()
        except TimeoutError:
            missing = sorted(set(range(1, count)) - links.keys())
            raise CfpError(
                f"Of {count} processes, {_numbers(missing)} did not connect to process 0 "
                f"on {hosts[0]} within {MEET_S:g} s: let TCP through between the hosts."
            ) from None
        try:
            process, host, version = _hear(connected)
            links[process] = Link(connected, secret.encode(), accepts=True)
            hosts[process] = host
        except (OSError, EOFError, ValueError, KeyError, AuthenticationError):
            connected.close()  # someone else's: whoever is ours tries again or is missed
            continue
        if version != VERSION:
            raise CfpError(
                f"Process {process} on {host} has cfp {version}, process 0 on {hosts[0]} "
                f"{VERSION}: install the same everywhere."
            )


def _follow(index: int) -> Team:
    told = _broadcast({})
    reasons = []
    for host in told["hosts"]:
        try:
            connected = socket.create_connection((host, told["port"]), timeout=_TRY_S)
            _greet(connected, index)
            link = Link(connected, told["secret"].encode(), accepts=False)
        except (OSError, EOFError, AuthenticationError) as error:
            reasons.append(f"{host}: {error}")
            continue
        team = _start(index, ("",) * jax.process_count(), {0: link})
        found = team.inbox.get(MEET_S)
        if found is None or found[1] is None:
            raise CfpError(f"Process 0 did not answer process {index} within {MEET_S:g} s.")
        team.hosts, team.leader_address = found[1][1], host
        return team
    raise CfpError(
        f"Process {index} cannot reach process 0 ({'; '.join(reasons)}): let TCP through between "
        "the hosts, and let process 0's host name resolve."
    )


def _start(index: int, hosts: tuple[str, ...], links: dict[int, Link]) -> Team:
    team = Team(index, hosts, links, Inbox())
    for process, link in links.items():
        link.start(team.inbox.from_(process))
    if index == 0:
        team.tell("hosts", hosts)
    return team


def _broadcast(what: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(what).encode().ljust(_BYTES)
    sent: Any = multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8))
    found: dict[str, Any] = json.loads(np.asarray(sent, np.uint8).tobytes())
    return found


def _greet(connected: socket.socket, index: int) -> None:
    """Plain JSON: at this point nobody has proved anything yet."""
    text = json.dumps({"process": index, "host": socket.gethostname(), "version": VERSION})
    connected.sendall(text.encode().ljust(_HELLO_BYTES))


def _hear(connected: socket.socket) -> tuple[int, str, str]:
    """Who it is, and what version of cfp it has."""
    connected.settimeout(_TRY_S)
    data = b""
    while len(data) < _HELLO_BYTES:
        more = connected.recv(_HELLO_BYTES - len(data))
        if not more:
            raise EOFError
        data += more
    found = json.loads(data)
    return int(found["process"]), str(found["host"]), str(found["version"])


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def own_addresses() -> list[str]:
    """By which others may reach this host, likely ones first."""
    name = socket.gethostname()
    found = [name]
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(name, None)]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel picks the way out
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys([*found, "127.0.0.1"]))


def _numbers(processes: list[int]) -> str:
    return f"{'process' if len(processes) == 1 else 'processes'} {', '.join(map(str, processes))}"
