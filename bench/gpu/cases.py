"""The cases, and what comes of one: planned from the local GPU, templates beside it."""

from __future__ import annotations

import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh

import cfp
from bench.environment import environment
from bench.planned import splits_of
from cfp.devices import axis_names
from cfp.errors import CfpError
from cfp.links.replay import replay
from cfp.models import config, make_step
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.store import Store
from cfp.profile.runners import stand_in
from cfp.training.flops import model_flops
from cfp.training.peaks import peak_flops, product_dtype

RESULTS = Path(__file__).parents[1] / "results"
SIZES = {"llama": "7b", "gpt": "6.7b", "moe": "7.1b"}  # the paper's
BATCH = 16
MESHES: dict[tuple[int, ...], tuple[str, ...]] = {
    (8,): ("h200_nvlink", "rtx_pro_6000_pcie"),  # one machine, over NVLink and over PCIe
    (2, 8): ("ib_400g,h200_nvlink",),
}
NETWORKS = [links for networks in MESHES.values() for links in networks]


@dataclass(frozen=True, slots=True)
class Case:
    """A model at its paper size in bfloat16, for a mesh with links. A device has the memory of the
    one that stands in, or what `memory` says of it may be used."""

    model: str
    mesh: tuple[int, ...]
    links: str
    batch: int = BATCH
    layers: int | None = None  # all of the paper's
    memory: str | None = None

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.mesh))
        size = SIZES[self.model]
        if self.layers is not None:
            size += f"-{self.layers}layers"
        limit = "" if self.memory is None else f"-{self.memory}"
        return f"{self.model}-{size}-b{self.batch}-{shape}-{self.links}{limit}"

    @property
    def file(self) -> str:
        return f"{self.name.replace(',', '+')}.json"

    @property
    def abstract_mesh(self) -> AbstractMesh:
        return AbstractMesh(self.mesh, axis_names(len(self.mesh)))

    def step(self) -> tuple[Any, tuple[Any, ...]]:
        """Returns the step, which donates its state, and the shapes of its arguments."""
        sizes = {"batch": self.batch, "layers": self.layers, "dtype": "bfloat16"}
        step, args = make_step(config(self.model, SIZES[self.model], **sizes), abstract=True)
        return jax.jit(step, donate_argnums=0), args


def has_gpu(program: str) -> bool:
    """Returns whether a GPU is here that can stand in; where not, says what the program needs."""
    try:
        stand_in.GPU.find()
    except CfpError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return False
    return True


class Free:
    """A network on which nothing takes time: the replay is then what the run itself should take."""

    def time_s(self, collective: str, axes: Sequence[str], size_bytes: float) -> float:
        return 0.0


def cases(
    models: Sequence[str],
    meshes: Sequence[tuple[int, ...]],
    networks: Sequence[str],
    **sizes: Any,
) -> Iterator[Case]:
    """Yields the cases of some models, meshes and links, mesh by mesh: those of one share their
    measurements."""
    for mesh in meshes:
        for model in models:
            for links in (one for one in MESHES[mesh] if one in networks):
                yield Case(model, mesh, links, **sizes)


def run(case: Case, cache: Path, budget: str, audit: int) -> dict[str, Any]:
    """Plans a case; returns what the table says of it, as plain data."""
    step, args = case.step()
    mesh = case.abstract_mesh
    before = full_steps(cache, case.mesh)
    began = time.monotonic()
    plan = cfp.plan(
        step,
        *args,
        mesh=mesh,
        links=case.links,
        budget=budget,
        memory_limit=case.memory,
        beside=cfp.templates.__all__,
        audit=audit,
        cache_dir=cache,
        progress=True,
    )
    seconds = time.monotonic() - began
    assert plan.evidence is not None
    assert plan.predicted is not None
    own, graph = plan.evidence.own, plan.known("bench").analysis.graph
    peak = peak_flops(plan.environment.device_kind, product_dtype(graph))
    time_s = plan.predicted.time_s if own is None else own.time_s
    return {
        "case": case.name,
        "device": plan.environment.device_kind,
        "environment": environment(),
        "seconds": seconds,
        "spent": {one.stage: one.seconds for one in plan.evidence.spent},
        "programs": plan.evidence.programs,
        "loaded": plan.evidence.loaded,
        "predicted_s": plan.predicted.time_s,
        "replayed_s": None if own is None else own.time_s,
        "communication_s": None if own is None else own.communication_s,
        "exposed_s": None if own is None else own.exposed_s,
        "predicted_bytes": plan.predicted.memory_bytes,
        "memory_bytes": plan.predicted.memory_bytes if own is None else own.memory_bytes,
        "mfu": None if peak is None else model_flops(graph) / time_s / (mesh.size * peak),
        "ratios": {
            one.name: one.time_s / time_s if one.ran else one.why_not()
            for one in plan.evidence.confirmed[1:]
        },
        "splits": splits_of(plan),
        "free": free_replays(full_steps(cache, case.mesh, but=before)),
        "notes": list(plan.notes),
    }


def full_steps(
    cache: Path, mesh: tuple[int, ...], but: Container[str] = ()
) -> dict[str, Measurement]:
    """Returns the full steps of this mesh in the store, by key."""
    shape = "x".join(map(str, mesh))
    with Store.open(cache) as store:
        rows = [
            Measurement.from_json(row.document)
            for row in store.entries()
            if row.environment.startswith(f"{shape} ") and row.name.startswith("full step")
        ]
    return {one.key: one for one in rows if one.key not in but}


def free_replays(steps: Mapping[str, Measurement]) -> dict[str, tuple[float, float]]:
    """Returns, of full steps that have a schedule, what a run took less the host's part of it, and
    what its replay with free collectives takes: they should agree."""
    found = {}
    for key, one in steps.items():
        if one.shares is not None and one.shares.schedule is not None:
            free_s = replay(one.shares.schedule, Free()).time_s
            found[f"{one.name} {key[:8]}"] = one.time_s - one.shares.host_s, free_s
    return found
