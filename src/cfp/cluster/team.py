"""The processes of a run: process 0 leads, the others follow.

The leader decides and tells; a follower does what it is told until it is told a result. When one
process is gone all the others end with a `TeamLost` that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from cfp.cluster.connection import Connection, ConnectionLost, Inbox
from cfp.cluster.ports import LOOPBACK
from cfp.cluster.wire import Message, sign
from cfp.errors import CfpError

KEPT = "What was measured is kept: start all processes again to go on."


class TeamLost(CfpError):
    """A process is gone, and with it the run."""


class TeamOver(CfpError):
    """Process 0 has ended without a result, and says why itself."""

    told = True


class Over(Message, frozen=True):
    """There will be no result, and why; `lost` if a process is gone."""

    reason: str
    lost: bool


class Team:
    """The processes that plan together, as one of them sees them. `hosts` are the names of the
    processes' hosts, by process. `connections` lead from the leader (process 0) to every other
    process, and from a follower to the leader, by process. All know `secret`."""

    def __init__(
        self,
        index: int,
        hosts: tuple[str, ...],
        connections: Mapping[int, Connection],
        inbox: Inbox,
        secret: bytes,
    ) -> None:
        self.index = index
        self.hosts = hosts
        self.connections = connections
        self.inbox = inbox
        self.doing = ""  # for people: what is under way
        self.advice = KEPT  # and what to do when it is lost
        self.leader_address = LOOPBACK  # where this process reaches process 0
        self.listens = ""  # the address that the leader listens on, "" for all it has
        self._secret = secret
        self._numbers = itertools.count(1)

    @property
    def count(self) -> int:
        return len(self.hosts)

    @property
    def leads(self) -> bool:
        return self.index == 0

    def host_numbers(self) -> tuple[int, ...]:
        """Returns the host of every process, numbered in the order they first appear."""
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(host, len(numbers)) for host in self.hosts)

    def number(self) -> int:
        """Returns a number that this team has not had; an answer to what is asked under it has the
        same."""
        return next(self._numbers)

    def name(self, process: int) -> str:
        return f"process {process} on {self.hosts[process]}"

    def key(self, purpose: str) -> bytes:
        """Returns a secret for one purpose, the same in all processes."""
        return sign(self._secret, b"purpose", purpose.encode())

    def tell(self, message: Message) -> None:
        """Sends a message to all others."""
        for process, connection in self.connections.items():
            try:
                connection.send(message)
            except ConnectionLost as lost:
                raise self.gone(process, str(lost)) from None

    def gone(self, process: int, how: str = "") -> TeamLost:
        """Returns the error that all processes end with once one is gone, and tells it to the
        others."""
        how = how or self.connections[process].lost or "it ended"
        meanwhile = f" while {self.doing}" if self.doing else ""
        reason = f"Lost {self.name(process)}{meanwhile}: {how}. {self.advice}"
        self.end(reason, lost=True)
        return TeamLost(reason)

    def end(self, reason: str, *, lost: bool = False) -> None:
        """Tells the others that there will be no result, and why."""
        for connection in self.connections.values():
            try:
                connection.send(Over(reason, lost))
            except ConnectionLost:
                continue  # it is the one that is gone, or ends by itself

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()
