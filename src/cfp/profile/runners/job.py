"""What a runner is given, and what it answers. Plain values: they travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cfp.cluster.wire import Message
from cfp.links.collectives import MeshCollective
from cfp.links.kernels import Kernels
from cfp.links.schedule import Schedule
from cfp.segments.fill import Fill


@dataclass(frozen=True, slots=True)
class Job:
    """One program to compile and run.

    `module` is a serialised `jax.export.Exported`, shardings included. `feedback` maps a result
    to the argument it replaces in the next run: training state, whose buffers are donated. With
    `frees` its arguments are freed when another program comes, and made again: several whole steps
    may not fit at once. One that is `alone` runs on one device, of the first process; the others
    have no part in it.
    """

    key: str  # what the program is, by content
    name: str  # for people
    module: bytes
    inputs: tuple[Fill, ...]
    feedback: Mapping[int, int] = field(default_factory=dict)
    frees: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class MeshSpec:
    """A mesh that another process can make again: devices by their ids, in mesh order. A CPU
    process makes `local` devices."""

    platform: str
    device_ids: tuple[int, ...]
    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    local: int


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers of several processes: who they are to JAX's distributed runtime. Worker 0 listens
    at the port of `address`, on its host's address `listens`, or on all of them for "". `key` is
    what only they know."""

    address: str
    count: int
    index: int
    listens: str
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the compiler says one device needs."""

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    aliased_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes + self.temporary_bytes - self.aliased_bytes


class Compiled(Message, frozen=True):
    """A program is ready to run. `seconds` is 0 where an identical one was compiled before.
    `collectives` are None where the compiler does not show the program, or not in a form that we
    read. `kernels` are told by a stand-in, of a program whose schedule can be replayed."""

    key: str
    seconds: float
    memory: Memory
    collectives: tuple[MeshCollective, ...] | None = None
    kernels: Kernels | None = None


class Failed(Message, frozen=True):
    """A program that does not compile or run here, and why, in one line."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the time of one run goes on an average device, by the profiler's recording.

    `transfer_s` is in collectives and not hidden behind computation; `waiting_s` is the part of
    collectives spent waiting for other devices, where the recording tells (else 0).

    On a device that stands in for others the collectives do nothing: `schedule` is the program's,
    with its measured kernels, or `unreplayed` says why there is none. A replay then says what
    communication takes: `transfer_s` of it, and `hidden_s` behind computation. `host_s` is what a
    run takes beyond the device's time, before its first kernel and after its last.
    """

    compute_s: float
    transfer_s: float
    waiting_s: float
    hidden_s: float = 0.0
    schedule: Schedule | None = None
    unreplayed: str = ""
    host_s: float = 0.0

    def scaled(self, factor: float) -> Shares:
        """Returns the shares of a run that takes `factor` times as long."""
        return Shares(
            self.compute_s * factor,
            self.transfer_s * factor,
            self.waiting_s * factor,
            self.hidden_s * factor,
        )
