"""A runner without devices: what each program does is written in a script, time is a number.

`Clock` stands in for `time.monotonic` of the modules that watch the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cfp.links.kernels import Kernels
from cfp.links.network import Network
from cfp.links.schedule import Schedule
from cfp.profile import profiler
from cfp.profile.measure import budget, campaign, compiling, findings, rounds
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.progress import Progress
from cfp.profile.measure.rounds import Effort
from cfp.profile.measure.store import Store
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Compiled, Failed, Job, Memory, Shares
from cfp.profile.runners.runner import RunnerLost

MACHINE = Machine("cpu", "cpu", "fake", (2,), (0, 0), "0", "0", (), ())
MEMORY = Memory(1, 2, 3, 0)
Call = tuple[str, tuple[str, ...]]


class Clock:
    """`time.monotonic`, which only runs take along; `time.time`, which counts the calls."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stamps = 0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        self.stamps += 1
        return float(self.stamps)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (budget, rounds, compiling, findings, campaign, profiler):
        monkeypatch.setattr(module, "time", clock)
    return clock


@dataclass
class FakeRunner:
    """`times` are seconds of a run on the machine as usual, by key, by name, or by what a name
    begins with (`idle` of `idle: 2 arguments`); the machine is `slow(now)` times slower.

    `fails` are programs that answer a reason, at "run" or "compile". `loses` is asked at every
    call, with what was called so far, and may answer why the runner is lost. Programs not in
    `times` take a second.
    """

    clock: Clock
    times: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)  # what a program's first run takes more
    slow: Callable[[float], float] = lambda now: 1.0
    fails: dict[tuple[str, str], str] = field(default_factory=dict)
    loses: Callable[[Call, Sequence[Call]], str | None] = lambda call, calls: None
    calls: list[Call] = field(default_factory=list)
    compile_s: float = 0.0
    hangs: set[str] = field(default_factory=set)  # keys that never answer
    ends: float = math.inf
    outside: bool = False  # whoever loses the runner is not one of its programs
    kernels: dict[str, Kernels] = field(default_factory=dict)  # as a stand-in tells them, by key
    memory: Callable[[str], Memory] = lambda name: MEMORY

    def __post_init__(self) -> None:
        self.names: dict[str, str] = {}
        self.there: set[str] = set()  # submitted, and neither dropped nor lost
        self.cold: set[str] = set()
        self.pending: list[str] = []

    def _call(self, kind: str, keys: Sequence[str], during: Sequence[str]) -> None:
        call = (kind, tuple(keys))
        why = self.loses(call, self.calls)
        self.calls.append(call)
        if why is not None:
            self.there.clear()
            self.pending.clear()
            raise RunnerLost(why, during, outside=self.outside)

    def submit(self, job: Job) -> None:
        self._call("submit", [job.key], self.pending)
        assert job.key not in self.there, "compiled twice"
        self.names[job.key] = job.name
        self.there.add(job.key)
        self.cold.add(job.key)
        self.pending.append(job.key)

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        assert timeout_s > 0
        self._call("finished", self.pending, self.pending)
        done, self.pending = self.pending, []
        self.clock.now += self.compile_s * len(done)
        return [
            Failed(key, self.fails[key, "compile"])
            if (key, "compile") in self.fails
            else Compiled(key, 0.5, self.memory(self.names[key]), kernels=self.kernels.get(key))
            for key in done
        ]

    def run(self, key: str, timeout_s: float) -> float | Failed:
        self._call("run", [key], [key, *self.pending])
        assert key in self.there, "not compiled"
        assert key not in self.pending
        if key in self.hangs:
            self.clock.now += timeout_s
            self.there.clear()
            self.pending.clear()
            raise RunnerLost(f"no answer in {timeout_s:g} s", [key], hung=True)
        if (key, "run") in self.fails:
            return Failed(key, self.fails[key, "run"])
        name = self.names.get(key, "")
        usual_s = self.times.get(name.partition(":")[0], 1.0)
        usual_s = self.times.get(key, self.times.get(name, usual_s))
        seconds = usual_s * self.slow(self.clock.now)
        if key in self.cold:
            self.cold.remove(key)
            seconds += self.first.get(key, 0.0)
        self.clock.now += seconds
        return seconds

    def time_shares(self, keys: Sequence[str], timeout_s: float) -> dict[str, Shares]:
        self._call("time_shares", keys, keys)
        return {key: self._shares(key) for key in keys}

    def _shares(self, key: str) -> Shares:
        """Of a program with kernels, a schedule in which they take what a run of it does."""
        if key not in self.kernels:
            return Shares(2.0, 1.0, 1.0)
        seconds = self.times.get(key, 1.0)
        first, *rest = self.kernels[key].schedule.moments
        schedule = Schedule((replace(first, compute_s=seconds), *rest))
        return Shares(seconds, 0.0, 0.0, schedule=schedule)

    def drop(self, keys: Sequence[str]) -> None:
        self._call("drop", keys, self.pending)
        self.there.difference_update(keys)

    def close(self) -> None: ...

    def ran(self) -> list[str]:
        """Keys, in order."""
        return [keys[0] for kind, keys in self.calls if kind == "run"]

    def submitted(self) -> list[str]:
        return [keys[0] for kind, keys in self.calls if kind == "submit"]


class Heard(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.expected: list[int] = []
        self.lost_for: list[str] = []
        self.measurements: list[Measurement] = []
        self.waited = 0

    def expect(self, programs: int) -> None:
        self.expected.append(programs)

    def measured(self, measurement: Measurement, best_s: float | None) -> None:
        self.measurements.append(measurement)

    def waiting(self, holder: str) -> None:
        self.waited += 1

    def lost(self, reason: str) -> None:
        self.lost_for.append(reason)


def request(key: str, group: str = "", arguments: int = 0) -> Request:
    return Request(key, "program", key, group, arguments, lambda: Job(key, key, b"", ()))


def requests(*keys: str, group: str = "") -> list[Request]:
    return [request(key, group) for key in keys]


def new_campaign(
    runner: FakeRunner,
    folder: Path,
    *,
    effort: Effort | None = None,
    overlap: bool = False,
    budget_s: float = math.inf,
    progress: Progress | None = None,
    machine: Machine = MACHINE,
    network: Network | None = None,
) -> Campaign:
    runner.ends = runner.clock.now + budget_s
    return Campaign(
        runner,
        Store.open(folder),
        machine,
        effort or Effort(warmups=2, repeats=4, wave=2),
        progress or Heard(),
        overlap=overlap,
        budget=Budget(runner.clock.now, budget_s),
        network=network,
    )


def stored(folder: Path) -> dict[str, Measurement]:
    with Store.open(folder) as store:
        return {one.key: Measurement.from_json(one.document) for one in store.entries()}
