"""How many devices? The best plan of every mesh of every number of devices, side by side.

tokens/s     the tokens of a step over its time
MFU          the model's FLOPs over the time and the peak of all devices
efficiency   how much of the speed of the smallest number each device keeps:
             (T_0 / T) (n_0 / n), where n_0 devices take T_0
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cfp.links import load_link
from cfp.plan import Plan
from cfp.plan.evidence import Evidence
from cfp.profile.measure.measurement import Provenance
from cfp.training.flops import model_flops
from cfp.training.peaks import peak_flops, product_dtype

MOST_AXES = 3  # of a mesh that is tried where nothing says how many: more are hardly ever used


@dataclass(frozen=True, slots=True)
class Programs:
    """What planning did to know the time of programs: how many were `compiled` (one that is the
    same as another is not), how many `ran`, of how many the kernels' times were `taken_over` from
    one of another mesh or option, and how many were `loaded`, having been measured before."""

    compiled: int = 0
    ran: int = 0
    taken_over: int = 0
    loaded: int = 0

    def __add__(self, other: Programs) -> Programs:
        return Programs(
            self.compiled + other.compiled,
            self.ran + other.ran,
            self.taken_over + other.taken_over,
            self.loaded + other.loaded,
        )

    @staticmethod
    def of(evidence: Evidence) -> Programs:
        compiled = evidence.programs - evidence.loaded
        return Programs(compiled, evidence.ran, evidence.taken_over, evidence.loaded)


@dataclass(frozen=True, slots=True)
class Scaled:
    """The best plan of one mesh. `tokens_per_s` and `mfu` are None where they are not known; the
    `best` of its number of devices is marked. `programs` are those of planning for this mesh."""

    devices: int
    mesh: tuple[int, ...]
    time_s: float
    provenance: Provenance
    tokens_per_s: float | None
    mfu: float | None
    memory_bytes: int
    efficiency: float
    best: bool
    programs: Programs = Programs()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def meshes(devices: int, links: Sequence[str] | None) -> list[tuple[tuple[int, ...], list[str]]]:
    """Returns the meshes of so many devices, none with an axis of size 1, and the links of each.

    Without links they have up to three axes: 8 is 8, 2x4, 4x2, 2x2x2. With links, an axis is along
    each of them, and one inside a machine has no more devices than it was measured with.
    """
    if links is None:
        return [(shape, []) for shape in factorisations(devices)]
    most = [_most(name) for name in links]
    found = []
    for sizes in _products(devices, len(links)):
        if all(size <= limit for size, limit in zip(sizes, most, strict=True)):
            kept = [(s, link) for s, link in zip(sizes, links, strict=True) if s > 1]
            kept = kept or [(1, links[-1])]
            found.append((tuple(s for s, _ in kept), [link for _, link in kept]))
    return sorted(found, key=lambda one: (len(one[0]), one[0]))


def factorisations(devices: int) -> list[tuple[int, ...]]:
    """Returns the meshes of one to three axes, none of size 1."""
    found = {
        tuple(size for size in sizes if size > 1) or (1,) for sizes in _products(devices, MOST_AXES)
    }
    return sorted(found, key=lambda shape: (len(shape), shape))


def scaling(plans: Sequence[Plan], tokens: int | None) -> tuple[Scaled, ...]:
    """Returns a row for every plan, by number of devices and time; `tokens` are those of a step."""
    ordered = sorted(plans, key=lambda plan: (plan.mesh.size, step_time(plan)))
    first = ordered[0]
    return tuple(
        _scaled(plan, first, tokens, best=at == 0)
        for _, group in itertools.groupby(ordered, key=lambda plan: plan.mesh.size)
        for at, plan in enumerate(group)
    )


def all_programs(rows: Sequence[Scaled]) -> Programs:
    """Returns the programs of all meshes together."""
    return sum((row.programs for row in rows), Programs())


def step_time(plan: Plan) -> float:
    """Returns the measured or replayed seconds of a plan's step, or else the predicted ones."""
    assert plan.evidence is not None
    assert plan.predicted is not None
    own = plan.evidence.own
    return plan.predicted.time_s if own is None else own.time_s


def _scaled(plan: Plan, first: Plan, tokens: int | None, *, best: bool) -> Scaled:
    assert plan.evidence is not None
    assert plan.predicted is not None
    own, time_s, size = plan.evidence.own, step_time(plan), plan.mesh.size
    graph = plan.known("scaling").analysis.graph
    peak = peak_flops(plan.environment.device_kind, product_dtype(graph))
    needs = None if own is None else own.memory_bytes
    return Scaled(
        devices=size,
        mesh=plan.mesh_shape,
        time_s=time_s,
        provenance=Provenance.PREDICTED if own is None else own.provenance,
        tokens_per_s=None if tokens is None else tokens / time_s,
        mfu=None if peak is None else model_flops(graph) / time_s / (size * peak),
        memory_bytes=plan.predicted.memory_bytes if needs is None else needs,
        efficiency=step_time(first) / time_s * first.mesh.size / size,
        best=best,
        programs=Programs.of(plan.evidence),
    )


def _most(name: str) -> float:
    """Returns how many devices a link joins at the most: inside a machine, as were measured."""
    link = load_link(name)
    if link.scope != "node":
        return math.inf
    return max(group for curves in link.tables.values() for group in curves)


def _products(count: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yields all ordered sizes of so many axes whose product is `count`."""
    if axes == 1:
        yield (count,)
        return
    for size in range(1, count + 1):
        if count % size == 0:
            for rest in _products(count // size, axes - 1):
                yield (size, *rest)
