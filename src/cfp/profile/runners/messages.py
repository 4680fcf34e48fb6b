"""What is said between a runner and its worker, and between the processes of a team.

To a worker                   it answers
    Setup                         Ready, once the devices are open
    Submit(job)                   later Started, then Compiled or Failed
    Run(key)                      Answer: seconds, or Failed
    TimeShares(keys)              Answer: the shares of those that it can tell
    Drop(keys)                    nothing
    anything                      Bug, where an exception is raised that should not be

The leader says               a member answers
    Open(generation, port, ...)   Opened(generation), when its worker is there
    Submit(job)                   later Finished(generation, Compiled | Failed)
    Ask(number, Run | TimeShares) Answered(number, the answer)
    Drop(keys)                    nothing
    Close()                       nothing; its worker is gone
    Result(value)                 nothing; the run is over

A generation is one worker in every process, started together: when one of them is lost, the member
says Lost, and the leader opens the next. What cannot be helped by that is Stopped.
"""

from __future__ import annotations

from typing import Any

from cfp.cluster.wire import Message
from cfp.profile.runners.job import Compiled, Failed, Job, MeshSpec, Shares, WorkerGroup

Value = float | Failed | dict[str, Shares]  # the answer to `Run` or to `TimeShares`


class Setup(Message, frozen=True):
    """The first message to a worker; `settings` are JAX's."""

    mesh: MeshSpec
    settings: dict[str, Any]
    compile_threads: int
    group: WorkerGroup | None


class Ready(Message, frozen=True):
    """The devices are open: those of a group, when all of its workers are there."""


class Submit(Message, frozen=True):
    """Asks for a program to be compiled."""

    job: Job


class Run(Message, frozen=True):
    """Runs a program once."""

    key: str


class TimeShares(Message, frozen=True):
    """Runs programs under the profiler, as often as they are listed."""

    keys: tuple[str, ...]


class Drop(Message, frozen=True):
    """Frees what the programs hold."""

    keys: tuple[str, ...]


class Started(Message, frozen=True):
    """Says that a program's turn to be compiled has come."""

    key: str


class Answer(Message, frozen=True):
    """Tells what came of the last `Run` or `TimeShares`."""

    value: Value


class Bug(Message, frozen=True):
    """The traceback of an exception where none should be."""

    text: str


class Open(Message, frozen=True):
    """Starts a worker; those of all processes meet at a port of process 0. The budget, if there is
    one, ends in `within_s` seconds."""

    generation: int
    port: int
    within_s: float | None


class Opened(Message, frozen=True):
    """The worker is there."""

    generation: int


class Ask(Message, frozen=True):
    """Asks for a run or for time shares, in no more than `timeout_s` seconds."""

    number: int
    request: Run | TimeShares
    timeout_s: float


class Answered(Message, frozen=True):
    """What came of what was asked under that number."""

    number: int
    value: Value


class Finished(Message, frozen=True):
    """What has become of a job."""

    generation: int
    answer: Compiled | Failed


class Lost(Message, frozen=True):
    """The worker is gone, busy with `during`: ended for not answering if it `hung`, ended by
    someone else if that came from `outside`."""

    generation: int
    reason: str
    during: tuple[str, ...]
    hung: bool
    outside: bool


class Stopped(Message, frozen=True):
    """There is no worker, and there will be none."""

    generation: int
    reason: str


class Close(Message, frozen=True):
    """End the worker."""


class Result(Message, frozen=True):
    """What all processes return, packed."""

    value: bytes
