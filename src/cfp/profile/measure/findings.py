"""What is known of programs: what the store has, and what this run measured.

Drifts are stored relative to the anchor's first measurement, which may have been in a slow moment:
the median over all waves of programs is the usual one. And the anchor's few runs vary. On a noisy
machine they vary more than it drifts, and to divide times by such drifts would add noise to them:
so the share of what drifts differ by that is chance is taken out of each (`UsualDrift`). `settle`
finds the usual drift, and from then on `known` is relative to it, but for times of the device: the
anchor's are the host's, which is slow and fast by itself.

With a network, the device stands in for others: what is stored is what was measured, with the
program's schedule, and `known` is its replay on the network. So another network needs no new runs.
Nor does a program of another mesh, or another option of the same one, that has the same kernels
(`cfp.links.kernels`): it is replayed with the kernels that were measured and its own collectives.
What is taken over is in the store under the kernels' fingerprint and the machine, whatever its mesh
is (`KernelTimes`). Its drift is left behind, being relative to the anchor of another mesh.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cfp.links.kernels import Kernels, with_times
from cfp.links.network import Network
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.progress import Progress
from cfp.profile.measure.store import Record, Store
from cfp.profile.programs.key import key_of
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Compiled

TELLING = 5  # waves, whose drifts tell how much of them is chance: fewer have no variance to trust


@dataclass
class Findings:
    """The measurements by key, in `known`. `loaded` counts those that the store had."""

    store: Store
    machine: Machine
    progress: Progress
    network: Network | None
    known: dict[str, Measurement] = field(default_factory=dict)
    loaded: int = 0

    def __post_init__(self) -> None:
        self._usual_drift = UsualDrift()
        self._drifts: dict[str, float] = {}  # as stored
        self._by_host: set[str] = set()  # whose times are by the host's clock
        self._ran_s: dict[str, float] = {}  # what a run took here, whatever a network adds
        self._best: dict[str, float] = {}  # the least time by group of requests

    def limit_s(self, request: Request, cutoff: float, overhead_s: float) -> float:
        """Returns what a run may take on the machine as usual before it is stopped early: `cutoff`
        times the best of its group, with the start, as the net time of a small program may be next
        to nothing. On a stand-in none is stopped for its group: what a run takes there is without
        communication, and what is stored must do for other networks."""
        limit_s = request.slowest_s
        if limit_s == math.inf and self.network is None and request.group in self._best:
            limit_s = cutoff * (self._best[request.group] + overhead_s)
        return limit_s / self._usual_drift.usual

    def anchor_s(self, key: str) -> float:
        """Returns what a program takes where the anchor's drift is one."""
        return self._ran_s[key] / self._drifts[key]

    def load(self, requests: Iterable[Request]) -> None:
        """Looks the requests up in the store."""
        requests = list(requests)
        records = self.store.get_many([request.key for request in requests])
        why = {}
        for request in requests:
            if request.key in records:
                try:
                    found = Measurement.from_json(records[request.key].document, request.key)
                except ValueError as error:
                    why[request.name] = str(error)
                    continue
                self._know(request, found)
        if why:
            self.store.distrust([*why], next(iter(why.values())))
        count = len(records) - len(why)
        if count:
            self.loaded += count
            self.progress.loaded(count)

    def forget(self, keys: Iterable[str], loaded: int) -> None:
        """Forgets what is known of some programs, of which `loaded` were counted as such."""
        self.loaded -= loaded
        for key in keys:
            del self.known[key]
        self._by_host.difference_update(keys)

    def write(self, request: Request, measurement: Measurement) -> None:
        """Notes a measurement here and in the store."""
        self._know(request, measurement)
        document, where = measurement.to_json(), self.machine.show()
        self.store.put(
            Record(request.key, request.program, request.name, where, document, time.time())
        )
        self._tell(request)

    def note(self, request: Request, measurement: Measurement) -> None:
        """Notes a measurement for this run only."""
        self._know(request, measurement)
        self._tell(request)

    def settle(self) -> None:
        """Makes what is known relative to how fast the machine usually was so far."""
        before = self._usual_drift.usual
        self._usual_drift.settle()
        slower = self._usual_drift.usual / before
        self._best = {group: best_s * slower for group, best_s in self._best.items()}
        for key in self._by_host:
            drift = self._usual_drift.drift(self._drifts[key])
            self.known[key] = replace(self.known[key], drift=drift)

    def _tell(self, request: Request) -> None:
        self.progress.measured(self.known[request.key], self._best.get(request.group))

    def _know(self, request: Request, stored: Measurement) -> None:
        self._usual_drift.see(stored)
        self._drifts[request.key] = stored.drift
        ran = replace(stored, drift=self._usual_drift.drift(stored.drift))
        found = ran
        if self.network is not None:
            found = ran.replayed(self.network)
        elif self.machine.platform == "gpu" and not request.by_host:
            found = ran.on_device()
        self.known[request.key] = found
        self._by_host.discard(request.key)
        if found is ran:
            self._by_host.add(request.key)
        if ran.failed is None:
            self._ran_s[request.key] = statistics.median(ran.runs_s)
        if found.failed is None and request.group:
            time_s = (ran if self.network is None else found).time_s
            self._best[request.group] = min(self._best.get(request.group, time_s), time_s)


class UsualDrift:
    """How much of a drift is not chance. `usual` is the usual drift; `trust` is the share of a
    difference from it that is not chance."""

    def __init__(self) -> None:
        self.usual = 1.0
        self.trust = 1.0
        self._sds: dict[float, float] = {}  # by drift: one per wave that ran with an anchor

    def see(self, stored: Measurement) -> None:
        if stored.failed is None and stored.drift != 1.0:  # without an anchor it is
            self._sds[stored.drift] = stored.drift_sd

    def settle(self) -> None:
        if self._sds:
            self.usual = statistics.median(self._sds)
        if len(self._sds) >= TELLING:
            chance = statistics.mean(sd**2 for sd in self._sds.values())
            self.trust = max(0.0, 1 - chance / statistics.variance(map(math.log, self._sds)))

    def drift(self, stored: float) -> float:
        """Returns how much slower than usual the anchor was."""
        return float((stored / self.usual) ** self.trust)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The kernels that were measured on a machine, in any program."""

    store: Store
    machine: Machine

    def find(
        self, wanted: Iterable[Request], compiled: Mapping[str, Compiled]
    ) -> dict[str, Measurement]:
        """Returns, by key, the measurements of the programs whose kernels are known, each with its
        own memory and collectives."""
        asked = {
            one.key: (one, compiled[one.key], kernels)
            for one in wanted
            if (kernels := compiled[one.key].kernels) is not None
        }
        places = {key: self._key(kernels) for key, (_, _, kernels) in asked.items()}
        records = self.store.get_many(places.values())
        found: dict[str, Measurement] = {}
        why: dict[str, str] = {}
        for key, (request, program, kernels) in asked.items():
            if (record := records.get(places[key])) is None:
                continue
            try:
                measured = Measurement.from_json(record.document, record.key)
                found[key] = _taken_over(measured, request, program, kernels)
            except ValueError as error:
                why[request.name] = str(error)
        if why:
            self.store.distrust([*why], next(iter(why.values())))
        return found

    def keep(self, measured: Measurement, compiled: Compiled) -> None:
        """Writes down what was measured for programs that have the same kernels, unless it has no
        schedule."""
        kernels, shares = compiled.kernels, measured.shares
        if kernels is None or shares is None or shares.schedule is None:
            return
        key = self._key(kernels)
        document = replace(measured, key=key, collectives=None).to_json()
        name = f"kernels: {measured.name}"
        where = self.machine.show()
        self.store.put(Record(key, kernels.fingerprint, name, where, document, time.time()))

    def _key(self, kernels: Kernels) -> str:
        return key_of(self.machine.of_any_mesh, "kernels", kernels.fingerprint)


def distinct(
    wanted: Iterable[Request], compiled: Mapping[str, Compiled]
) -> tuple[list[Request], list[Request]]:
    """Returns the programs that differ in their kernels, and those that have the kernels of one of
    them."""
    first: dict[str, Request] = {}
    again: list[Request] = []
    for request in wanted:
        kernels = compiled[request.key].kernels
        known_as = request.key if kernels is None else kernels.fingerprint
        if first.setdefault(known_as, request) is not request:
            again.append(request)
    return [*first.values()], again


def _taken_over(
    measured: Measurement, request: Request, program: Compiled, kernels: Kernels
) -> Measurement:
    shares = measured.shares
    if shares is None or shares.schedule is None:
        raise ValueError("it has no schedule")
    schedule = with_times(kernels.schedule, shares.schedule)
    return replace(
        measured,
        key=request.key,
        name=request.name,
        drift=1.0,
        drift_sd=0.0,
        compile_s=program.seconds,
        memory=program.memory,
        shares=replace(shares, schedule=schedule),
        collectives=program.collectives,
    )
