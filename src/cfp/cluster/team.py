"""The processes of a run: process 0 leads, the others follow.

The leader decides and tells; a follower does what it is told until it is told a result. When one
process is gone all the others end with a `TeamLost` that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from cfp.cluster.link import Inbox, Link, LinkLost
from cfp.errors import CfpError

KEPT = "What was measured is kept: start all processes again to go on."


class TeamLost(CfpError):
    """A process is gone, and with it the run."""


class TeamOver(CfpError):
    """Process 0 has ended without a result, and says why itself."""


class Team:
    """`hosts` are the names of the processes' hosts, by process. `links` of the leader are to every
    other process, of a follower to the leader (process 0), each by process."""

    def __init__(
        self, index: int, hosts: tuple[str, ...], links: Mapping[int, Link], inbox: Inbox
    ) -> None:
        self.index = index
        self.hosts = hosts
        self.links = links
        self.inbox = inbox
        self.doing = ""  # for people: what is under way
        self.advice = KEPT  # and what to do when it is lost
        self.leader_address = "127.0.0.1"  # where this process reaches process 0
        self._numbers = itertools.count(1)

    @property
    def count(self) -> int:
        return len(self.hosts)

    @property
    def leads(self) -> bool:
        return self.index == 0

    def host_numbers(self) -> tuple[int, ...]:
        """The host of every process, numbered in the order they first appear."""
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(host, len(numbers)) for host in self.hosts)

    def number(self) -> int:
        """One that this team has not had: what is asked under it has its answer."""
        return next(self._numbers)

    def name(self, process: int) -> str:
        return f"process {process} on {self.hosts[process]}"

    def tell(self, *message: Any) -> None:
        """To all others."""
        for process, link in self.links.items():
            try:
                link.send(*message)
            except LinkLost as lost:
                raise self.gone(process, str(lost)) from None

    def gone(self, process: int, how: str = "") -> TeamLost:
        """The error that all processes end with, once one is gone; the others are told."""
        how = how or self.links[process].lost or "it ended"
        meanwhile = f" while {self.doing}" if self.doing else ""
        reason = f"Lost {self.name(process)}{meanwhile}: {how}. {self.advice}"
        self.end(reason, lost=True)
        return TeamLost(reason)

    def end(self, reason: str, *, lost: bool = False) -> None:
        """Tells the others that there will be no result, and why."""
        for link in self.links.values():
            try:
                link.send("over", reason, lost)
            except LinkLost:
                continue  # it is the one that is gone, or ends by itself

    def close(self) -> None:
        for link in self.links.values():
            link.close()
