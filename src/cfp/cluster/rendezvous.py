"""How the processes of a JAX job find each other.

They share JAX's distributed runtime, so the leader broadcasts through it where it listens. Which of
its names and addresses the others can reach only they can tell: they try all.

All processes know a secret: that of the environment (`CFP_SECRET`, which `cfp launch` sets), or one
that the leader broadcasts. The broadcast is a collective over the devices; JAX's key-value store,
which strangers can read, has no part of it. Whoever connects to the leader counts only when it has
proved that it knows the secret. Strangers are heard side by side with the others, for `PROOF_S` at
most, and sent away.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from cfp.cluster.connection import Connection, Inbox
from cfp.cluster.ports import LOOPBACK, listen, listening_host
from cfp.cluster.team import Team
from cfp.cluster.wire import Message, WireError, decode, encode
from cfp.errors import CfpError
from cfp.trace.runtime import coordinator_address
from cfp.version import VERSION

SECRET = "CFP_SECRET"  # the variable
SECRET_CHARACTERS = 32  # at least: 128 bits, as hexadecimal digits
MEET_S = 60.0  # all processes run already: a busy one needs seconds, a firewall for ever
HEARD = 128  # connections whose greetings are heard at once; of more, the oldest are given up
_TRY_S = 5.0  # for one address to answer: the others have their turn within `MEET_S`
_PAUSE_S = 0.05  # between two tries: nobody notices it, and it keeps no core busy
_BYTES = 2048  # the size of the broadcast
_NAMES = 16  # addresses in it
_REFUSED = (OSError, EOFError, WireError)


class Hello(Message, frozen=True):
    """The greeting: who it is, and what version of cfp it has."""

    process: int
    host: str
    version: str


class Hosts(Message, frozen=True):
    """All are there: the names of their hosts, by process."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Invitation:
    """What is broadcast: where the leader listens, and the secret; "" is the environment's."""

    hosts: tuple[str, ...]
    port: int
    secret: str


@contextlib.contextmanager
def meet() -> Iterator[Team]:
    """Gives the team of all processes of the JAX job, each of which calls this. The team is apart
    from JAX's runtime: it stays when that is shut down."""
    index, count = jax.process_index(), jax.process_count()
    team = _lead(count) if index == 0 else _follow(index, count)
    try:
        yield team
    finally:
        team.close()


def _lead(count: int) -> Team:
    known = _known_secret()
    secret = known or secrets.token_hex(32)
    reached = (coordinator_address() or "").rpartition(":")[0]  # by the others
    listens = listening_host(reached.removeprefix("[").removesuffix("]"))
    connections: dict[int, Connection] = {}
    hosts = {0: socket.gethostname()}
    try:
        with listen(listens) as listener:
            addresses = (listens,) if listens else own_addresses()[:_NAMES]
            port = int(listener.getsockname()[1])
            _broadcast(Invitation(tuple(addresses), port, "" if known else secret))
            _gather(listener, count, secret.encode(), connections, hosts)
    except BaseException:
        for connection in connections.values():
            connection.close()
        raise
    names = tuple(hosts[process] for process in range(count))
    team = _start(0, names, dict(sorted(connections.items())), secret)
    team.listens, team.leader_address = listens, listens or LOOPBACK
    team.tell(Hosts(names))
    return team


def _gather(
    listener: socket.socket,
    count: int,
    secret: bytes,
    connections: dict[int, Connection],
    hosts: dict[int, str],
) -> None:
    """Waits until all others have come; adds their connections and the names of their hosts."""
    listener.settimeout(_PAUSE_S)
    deadline = time.monotonic() + MEET_S
    heard: dict[socket.socket, None] = {}  # those who are greeting us, in the order they came
    greeted: queue.SimpleQueue[tuple[socket.socket, Connection | None]] = queue.SimpleQueue()
    greeting = Hello(0, hosts[0], VERSION)
    refused = 0

    def hear(connected: socket.socket) -> None:
        connection = None
        try:
            connection = Connection(connected, secret, greeting, accepts=True)
        except _REFUSED:
            pass  # someone else's: whoever is ours tries again or is missed
        finally:
            greeted.put((connected, connection))

    try:
        while len(connections) < count - 1:
            if time.monotonic() > deadline:
                missing = sorted(set(range(1, count)) - connections.keys())
                strangers = f" ({refused} that did were strangers)" if refused else ""
                raise CfpError(
                    f"Of {count} processes, {_numbers(missing)} did not connect to process 0 on "
                    f"{hosts[0]} within {MEET_S:g} s{strangers}: let TCP through between the "
                    f"hosts, and give all processes the same {SECRET} if they have one."
                )
            with contextlib.suppress(OSError):  # nobody came, or went again at once
                connected, _ = listener.accept()
                heard[connected] = None
                threading.Thread(
                    target=hear, args=(connected,), name="cfp-hear", daemon=True
                ).start()
            if len(heard) > HEARD:
                _hang_up(next(iter(heard)))
            while not greeted.empty():
                connected, connection = greeted.get()
                del heard[connected]
                if connection is None:
                    connected.close()
                    refused += 1
                else:
                    _admit(connection, count, connections, hosts)
    finally:
        for connected in heard:
            _hang_up(connected)
        for _ in range(len(heard)):
            greeted.get()[0].close()


def _admit(
    connection: Connection, count: int, connections: dict[int, Connection], hosts: dict[int, str]
) -> None:
    """Admits someone who knows the secret; one that comes again had reason to."""
    hello = connection.greeted
    if not isinstance(hello, Hello) or not 0 < hello.process < count:
        connection.close()
        return
    if hello.process in connections:
        connections[hello.process].close()
    connections[hello.process] = connection
    hosts[hello.process] = hello.host
    _check_version(hello.version, f"Process {hello.process} on {hello.host}", hosts[0], VERSION)


def _follow(index: int, count: int) -> Team:
    told = _broadcast(None)
    known = _known_secret()
    if bool(told.secret) == bool(known):
        raise CfpError(
            f"{SECRET} is set in {'this process' if known else 'process 0'} and not in "
            f"{'process 0' if known else f'process {index}'}: give the same to all processes, or "
            "to none."
        )
    secret = known or told.secret
    connection, host = _reach(told, index, secret.encode())
    hello = connection.greeted
    if isinstance(hello, Hello):
        here = socket.gethostname()
        _check_version(VERSION, f"Process {index} on {here}", hello.host, hello.version)
    team = _start(index, ("",) * count, {0: connection}, secret)
    team.leader_address = host
    found = team.inbox.get(MEET_S)
    match found:
        case _, Hosts(names=names) if len(names) == count:
            team.hosts = names
            return team
    team.close()
    how = f"did not answer within {MEET_S:g} s" if found is None else "ended, and says why itself"
    raise CfpError(f"Process {index} met process 0, and not all the others: process 0 {how}.")


def _reach(told: Invitation, index: int, secret: bytes) -> tuple[Connection, str]:
    """Returns the connection to process 0, and the address that it was reached at."""
    deadline = time.monotonic() + MEET_S
    greeting = Hello(index, socket.gethostname(), VERSION)
    while True:
        reasons = []
        for host in told.hosts:
            try:
                connected = socket.create_connection((host, told.port), timeout=_TRY_S)
            except OSError as error:
                reasons.append(f"{host}: {error}")
                continue
            try:
                return Connection(connected, secret, greeting, accepts=False), host
            except _REFUSED as error:
                connected.close()
                reasons.append(f"{host}: {str(error).rstrip('.') or 'it hung up'}")
        if time.monotonic() > deadline:
            raise CfpError(
                f"Process {index} cannot reach process 0 ({'; '.join(reasons)}): let TCP through "
                "between the hosts, let process 0's host name resolve, and give all processes the "
                f"same {SECRET} if they have one."
            )
        time.sleep(_PAUSE_S)


def _start(
    index: int, hosts: tuple[str, ...], connections: dict[int, Connection], secret: str
) -> Team:
    team = Team(index, hosts, connections, Inbox(), secret.encode())
    for process, connection in connections.items():
        connection.start(team.inbox.from_(process))
    return team


def _known_secret() -> str:
    """Returns the secret of the environment, or an empty text if there is none."""
    found = os.environ.get(SECRET, "")
    if found and len(found) < SECRET_CHARACTERS:
        raise CfpError(
            f"{SECRET} has {len(found)} characters, which can be guessed: make one of at least "
            f"{SECRET_CHARACTERS}, for example with `openssl rand -hex 32`."
        )
    return found


def _broadcast(told: Invitation | None) -> Invitation:
    """Returns what the leader tells all processes; the others give None."""
    data = b"" if told is None else encode(told)
    if len(data) > _BYTES - 2:
        raise CfpError(f"The names of {socket.gethostname()} are too long to be broadcast.")
    padded = (len(data).to_bytes(2, "big") + data).ljust(_BYTES)
    sent: Any = multihost_utils.broadcast_one_to_all(np.frombuffer(padded, np.uint8))
    found = np.asarray(sent, np.uint8).tobytes()
    return decode(found[2 : 2 + int.from_bytes(found[:2], "big")], Invitation)


def _check_version(version: str, who: str, leader: str, leaders: str) -> None:
    if version != leaders:
        raise CfpError(
            f"{who} has cfp {version}, process 0 on {leader} {leaders}: install the same "
            "everywhere."
        )


def _hang_up(connected: socket.socket) -> None:
    """Wakes whoever reads or writes."""
    with contextlib.suppress(OSError):  # the other end was faster
        connected.shutdown(socket.SHUT_RDWR)


def own_addresses() -> list[str]:
    """Returns the addresses by which others may reach this host, likely ones first."""
    name = socket.gethostname()
    found = [name]
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(name, None)]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel picks the way out
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys([*found, LOOPBACK]))


def _numbers(processes: list[int]) -> str:
    return f"{'process' if len(processes) == 1 else 'processes'} {', '.join(map(str, processes))}"
