"""The time of a schedule on a network: its measured kernels, and each collective as its link says.

Two streams run side by side, each in order: the compute stream has the kernels, the communication
stream the collectives. With t the time of the one and c the time of the other,

    kernels of k seconds          t <- t + k
    a transfer i of x seconds     c <- max(t, c) + x,   end(i) <- c
    wait for transfer i           t <- max(t, end(i))
    at the end                    time = max(t, c)

Communication is the sum of all x, computing that of all k, and communication is exposed where no
kernel runs meanwhile: exposed = time - computing. So max(computing, communication) <= time <=
computing + communication, and with a free network the time is that of the kernels as they were
recorded, with the short gaps between them.

What is neglected: kernels are not slowed by collectives beside them (which take some of a GPU's
memory bandwidth and processors), devices do not wait for slower ones, and the host is taken to be
ahead of the device, as it is in a step of many milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cfp.links.schedule import Moment, Schedule, Transfer


class Times(Protocol):
    """What says how long a collective takes: a `Network`."""

    def time_s(self, collective: str, axes: Sequence[str], size_bytes: float) -> float:
        """Returns the seconds of one collective along mesh axes."""
        ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one run of a program takes on a network."""

    time_s: float
    compute_s: float
    communication_s: float

    @property
    def exposed_s(self) -> float:
        """Returns the part of communication beside which nothing is computed."""
        return max(self.time_s - self.compute_s, 0.0)


def replay(schedule: Schedule, network: Times) -> Replayed:
    """Returns the time of a schedule whose collectives take what the network says."""
    known: dict[Transfer, float] = {}

    def takes_s(transfer: Transfer) -> float:
        if transfer not in known:
            free = not transfer.axes or transfer.bytes == 0  # nothing leaves a device
            kind, axes, count = transfer.kind, transfer.axes, float(transfer.bytes)
            known[transfer] = 0.0 if free else network.time_s(kind, axes, count)
        return known[transfer]

    clock = _Clock(takes_s)
    clock.run(schedule.moments)
    time_s = max(clock.compute_now, clock.transfer_now)
    return Replayed(time_s, clock.compute_s, clock.communication_s)


@dataclass
class _Clock:
    takes_s: Callable[[Transfer], float]
    compute_now: float = 0.0
    transfer_now: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0

    def run(self, moments: Sequence[Moment]) -> None:
        ends: dict[int, float] = {}
        for at, moment in enumerate(moments):
            self.compute_now += moment.compute_s
            self.compute_s += moment.compute_s
            if moment.transfer is not None:
                seconds = self.takes_s(moment.transfer)
                self.transfer_now = max(self.compute_now, self.transfer_now) + seconds
                self.communication_s += seconds
                ends[at] = self.transfer_now
            if moment.wait is not None:
                self.compute_now = max(self.compute_now, ends[moment.wait])
            if moment.loop is not None:
                for _ in range(moment.loop.times):
                    self.run(moment.loop.body)
