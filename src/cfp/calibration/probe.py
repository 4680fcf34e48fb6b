"""What calibrating runs: chains of collectives along mesh axes.

A program runs a few collectives, each on the result of the one before, so that starting it weighs
little. Its input is flat, and split along these axes; along the others all groups do the same at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cfp.links.link import COLLECTIVES
from cfp.links.network import TOGETHER
from cfp.profile.programs.key import key_of
from cfp.profile.programs.lower import export
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Job
from cfp.segments.fill import Fill

CHAIN_BYTES = 2**21  # that a program moves, in at least and at most
SHORT_CHAIN, LONG_CHAIN = 2, 32  # collectives: that the processes of a cluster start milliseconds
# apart is waiting, too, and must weigh little in each
ITEM_BYTES = 4  # of a float32
_lax: Any = jax.lax
Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A chain of collectives along mesh axes, in groups of `size` devices; `size_bytes` are of the
    tensor that a group holds together."""

    kind: str
    axes: Axes
    size: int
    size_bytes: int

    @property
    def chain(self) -> int:
        return min(max(CHAIN_BYTES // self.size_bytes, SHORT_CHAIN), LONG_CHAIN)

    @property
    def link(self) -> str:
        """Returns the name of the link that the probe measures."""
        return TOGETHER.join(self.axes)

    def show(self) -> str:
        return f"{self.kind} along {self.link}: {self.size_bytes} bytes"


def probe_request(machine: Machine, mesh: Mesh, probe: Probe) -> Request:
    """Returns the request of a probe's program."""
    key = key_of(machine, "collective", probe.kind, probe.link, probe.size_bytes, probe.chain)

    def make() -> Job:
        jitted, inputs = chain_program(mesh, probe)
        return Job(key, probe.show(), export(jitted, inputs), inputs)

    return Request(key, f"collective {probe.kind}", probe.show(), "", 2, make)


def chain_program(mesh: Mesh, probe: Probe) -> tuple[Any, tuple[Fill, ...]]:
    """Returns the jitted chain of a probe, and its input: flat, split along the axes."""
    items = probe.size_bytes // ITEM_BYTES
    gathers = probe.kind == "all-gather"  # what a device has is then a part of the tensor
    local = items // probe.size if gathers else items
    turn = _TURNS[probe.kind]

    def chain(x: Any) -> Any:
        for _ in range(probe.chain):
            x = turn(probe.axes, probe.size, x)
        return x

    spec: Any = PartitionSpec(probe.axes)  # type: ignore[no-untyped-call]
    mapped: Any = jax.shard_map(chain, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    lie = NamedSharding(mesh, spec)
    inputs = (Fill((local * probe.size,), "float32", "normal"),)
    return jax.jit(mapped, in_shardings=lie, out_shardings=lie), inputs


def _all_reduce(axes: Axes, size: int, x: Any) -> Any:
    return _lax.psum(x, axes) / size


def _all_gather(axes: Axes, size: int, x: Any) -> Any:
    whole = _lax.all_gather(x, axes, tiled=True)
    return _lax.optimization_barrier(whole)[: x.size]  # else only this part may be moved


def _reduce_scatter(axes: Axes, size: int, x: Any) -> Any:
    part = _lax.psum_scatter(x, axes, tiled=True) / size
    return _lax.concatenate([_lax.optimization_barrier(part)] * size, 0)


def _all_to_all(axes: Axes, size: int, x: Any) -> Any:
    return _lax.all_to_all(x, axes, 0, 0, tiled=True)


def _permute(axes: Axes, size: int, x: Any) -> Any:
    return _lax.ppermute(x, axes, [(i, (i + 1) % size) for i in range(size)])


# one collective of each kind, whose result has the shape of its operand
_TURNS: Mapping[str, Callable[[Axes, int, Any], Any]] = dict(
    zip(
        COLLECTIVES,
        (_all_reduce, _all_gather, _reduce_scatter, _all_to_all, _permute),
        strict=True,
    )
)
