"""Ends a process when another of its team is gone, whatever it is doing.

For programs that run in this very process: one that waits in a collective for a process that is
gone waits for ever, or until JAX aborts it. The watcher is a thread, so it is heard anyway.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cfp.cluster.connection import ConnectionLost
from cfp.cluster.team import Over, Team
from cfp.cluster.wire import Message
from cfp.errors import CfpError

FAREWELL_S = 60.0  # the others may still be saving what this process has saved
GRACE_S = 10.0  # of a process that failed: the others only have to hear of it


class Done(Message, frozen=True):
    """A follower has nothing left to do."""


class Bye(Message, frozen=True):
    """The leader says that no process has."""


@dataclass
class Farewell:
    """How long to wait for the others at the end of the block, and what they are told then."""

    seconds: float = FAREWELL_S
    reason: str = "it is done"

    def hurry(self, reason: str) -> None:
        """Says that this process ends before its time: the others may not, and wait for it."""
        self.seconds, self.reason = GRACE_S, reason


@contextlib.contextmanager
def watched(team: Team | None, end: Callable[[str], None]) -> Iterator[Farewell]:
    """Watches the other processes: `end` is called, from another thread, with a sentence that names
    the process that is gone.

    The block ends in all processes together."""
    farewell = Farewell()
    if team is None:
        yield farewell
        return
    finished, over = threading.Event(), threading.Event()
    threading.Thread(target=_watch, args=(team, end, finished, over), daemon=True).start()
    try:
        yield farewell
    except BaseException as error:
        if not isinstance(error, (CfpError, KeyboardInterrupt)):
            over.wait(GRACE_S)  # it may be that another is gone: then the watcher ends us
        over.set()  # from here on we end by ourselves
        team.end(f"Lost {team.name(team.index)}: {error or type(error).__name__}")
        raise
    finished.set()
    if not team.leads:
        with contextlib.suppress(ConnectionLost):  # the watcher notices, too
            team.connections[0].send(Done())
    if not over.wait(farewell.seconds):
        over.set()
        team.end(f"Lost {team.name(team.index)}: {farewell.reason}")


def _watch(
    team: Team, end: Callable[[str], None], finished: threading.Event, over: threading.Event
) -> None:
    """Watches until all are done: `finished` is set when this process has nothing left to do,
    `over` when no process has."""
    done: set[int] = set()
    while True:
        got = team.inbox.get(None)
        assert got is not None
        who, message = got
        match message:
            case None:
                if not over.is_set() and (team.leads or not finished.is_set()):
                    end(str(team.gone(who)))
                over.set()
                return
            case Over(reason=reason):
                if not over.is_set():
                    if team.leads:  # the others hear it from nobody else
                        team.end(reason)
                    end(reason)
                return
            case Done():
                done.add(who)
                if len(done) == team.count - 1:
                    for connection in team.connections.values():
                        with contextlib.suppress(ConnectionLost):  # who is gone by now was done
                            connection.send(Bye())
                    over.set()  # only now: the connections are closed after it
            case Bye():
                over.set()
