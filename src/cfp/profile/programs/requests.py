"""The programs that are measured: segments, segments chained, reshardings, and nothing at all.

A `Request` knows what a program is called in the store before anything is lowered; `make` lowers it
where it must be measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from cfp.layouts import AnyMesh, Layout, Layouts, halfway, sharding
from cfp.profile.programs.key import job_key, key_of, program_digest
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.lower import export, fills, lower
from cfp.profile.programs.machine import Machine
from cfp.profile.runners.job import Job
from cfp.segments.extract import Extract
from cfp.segments.fill import Fill


@dataclass(frozen=True, slots=True)
class Request:
    """A program that may have to be measured. `group` names those that compete: one that is clearly
    slower than the group's best is stopped early.

    `arguments` counts what goes in and out: starting a program takes time for each. One that takes
    more than `slowest_s` is given up, whatever its group. The time of one that is `by_host` is what
    the host sees; that of another is the device's, where the host is late with its kernels.
    """

    key: str
    program: str
    name: str
    group: str
    arguments: int
    make: Callable[[], Job]
    slowest_s: float = math.inf
    by_host: bool = False


@dataclass(frozen=True, slots=True)
class Resharding:
    """A tensor that is in one layout and is needed in another."""

    shape: tuple[int, ...]
    dtype: str
    source: Layout
    target: Layout

    def show(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.source} -> {self.target}"


def extract_requests(
    machine: Machine, mesh: AnyMesh, kind: Kind, option: Option, layouts: tuple[Layouts, ...]
) -> list[Request]:
    """Returns the requests of a segment's programs in these layouts."""
    found = []
    for i, (extract, lie) in enumerate(zip(kind.extracts, layouts, strict=True)):
        once = "" if i == 0 else ", once"
        name = f"segment {kind.index}{once}: {kind.show(option)}"
        group = f"segment {kind.index} program {i} {option.state.value} {option.keep.value}"
        found.append(layout_request(machine, mesh, extract, lie, name, group))
    return found


def chained_request(
    machine: Machine, mesh: AnyMesh, kind: Kind, option: Option, layouts: Layouts
) -> Request:
    """Returns the request of the segment twice in a row."""
    assert kind.chained is not None
    name = f"chained segment {kind.index}: {kind.show(option)}"
    group = f"chained segment {kind.index} {option.state.value} {option.keep.value}"
    return layout_request(machine, mesh, kind.chained, layouts, name, group)


def layout_request(
    machine: Machine,
    mesh: AnyMesh,
    extract: Extract,
    layouts: Layouts,
    name: str,
    group: str,
    *,
    frees: bool = False,
) -> Request:
    """Returns the request of a program in these layouts."""
    program = program_digest(extract)
    key = job_key(machine, program, layouts)

    def make() -> Job:
        module = lower(extract, layouts, mesh, machine.exports)
        return Job(key, name, module, fills(extract, layouts), extract.in_place, frees)

    count = len(extract.graph.inputs) + len(extract.graph.outputs)
    return Request(key, program, name, group, count, make)


def resharding_request(machine: Machine, mesh: AnyMesh, what: Resharding) -> Request:
    """Returns the request of a tensor that is moved from one layout to another, alone."""
    program = f"reshard {what.dtype} {what.shape}"
    via = halfway(what.source, what.target)
    key = key_of(machine, program, what.source, what.target, *([] if via is None else [via]))

    def make() -> Job:
        kind: Any = "normal"
        if what.dtype == "bool":
            kind = "bools"
        elif "uint" in what.dtype:
            kind = "bits"
        elif "int" in what.dtype:
            kind = "integers"
        inputs = (Fill(what.shape, what.dtype, kind, 0, 2),)
        lie: Any = jax.lax.with_sharding_constraint
        moved: Any = jax.jit(
            lambda x: x if via is None else lie(x, sharding(mesh, via)),
            in_shardings=sharding(mesh, what.source),
            out_shardings=sharding(mesh, what.target),
        )
        return Job(
            key, f"resharding: {what.show()}", export(moved, inputs, machine.exports), inputs
        )

    return Request(key, program, f"resharding: {what.show()}", "", 2, make)


def idle_request(machine: Machine, mesh: AnyMesh, arguments: int) -> Request:
    """Returns the request of a program that does next to nothing to many small arguments: it shows
    what starting one takes."""
    program = f"idle {arguments}"
    key = key_of(machine, program)
    lie = sharding(mesh, (None,) * len(mesh.axis_sizes))

    def make() -> Job:
        inputs = (Fill((8,), "float32", "normal"),) * arguments
        touch: Any = jax.jit(
            lambda *xs: tuple(x + 1 for x in xs), in_shardings=lie, out_shardings=lie
        )
        return Job(
            key, f"idle: {arguments} arguments", export(touch, inputs, machine.exports), inputs
        )

    name = f"idle: {arguments} arguments"
    return Request(key, program, name, "", 2 * arguments, make, by_host=True)
