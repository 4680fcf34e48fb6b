"""What a measurement depends on besides the program: the devices, and the compiler with its flags,
JAX's settings and the environment (`cfp.profile.runners.settings` says which of them).

Two machines that differ in nothing here are taken to measure the same.
"""

from __future__ import annotations

import os
import platform as host
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import AbstractMesh, Mesh

from cfp.layouts import AnyMesh
from cfp.profile.runners.settings import key_environment, key_flags, key_settings
from cfp.profile.runners.stand_in import LocalDevices, used


@dataclass(frozen=True, slots=True)
class Machine:
    """`processes` is the process of every device in mesh order, `host` the CPU where it counts. Of
    several processes, `hosts` is the host of every device, and `network` what lies between them.
    Where devices stand in for those of the mesh, `stand_ins` is how many."""

    platform: str
    device_kind: str
    host: str
    mesh_shape: tuple[int, ...]
    processes: tuple[int, ...]
    jax: str
    jaxlib: str
    flags: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...] = ()
    hosts: tuple[int, ...] = ()
    network: str = ""
    stand_ins: int = 0

    @staticmethod
    def _standing_in(mesh: AbstractMesh, local: LocalDevices) -> Machine:
        return Machine(
            platform=local.platform,
            device_kind=local.kind,
            host=_cpu() if local.platform == "cpu" else "",
            mesh_shape=mesh.axis_sizes,
            processes=(),
            **_compiler(),
            stand_ins=used(local, mesh),
        )

    @property
    def of_any_mesh(self) -> Machine:
        """Returns the same devices and compiler, whatever mesh they stand in for: what every mesh
        has in common is kept under it."""
        return replace(self, mesh_shape=(), stand_ins=1)

    @property
    def exports(self) -> str | None:
        """Returns the platform that programs are lowered for, which JAX knows by itself where it
        has the devices."""
        if not self.stand_ins:
            return None
        return "cuda" if self.platform == "gpu" else self.platform

    @staticmethod
    def of(mesh: AnyMesh, local: LocalDevices | None = None) -> Machine:
        """Returns the machine of a mesh; `local` devices stand in for one that has none."""
        if isinstance(mesh, AbstractMesh):
            assert local is not None
            return Machine._standing_in(mesh, local)
        devices: list[Any] = list(mesh.devices.flat)
        numbers = {p: i for i, p in enumerate(dict.fromkeys(d.process_index for d in devices))}
        first = devices[0]
        return Machine(
            platform=first.platform,
            device_kind=first.device_kind,
            host=_cpu() if first.platform == "cpu" else "",
            mesh_shape=mesh.axis_sizes,
            processes=tuple(numbers[d.process_index] for d in devices),
            **_compiler(),
        )

    def on(self, mesh: Mesh, hosts: tuple[int, ...]) -> Machine:
        """Returns the machine of several processes, whose hosts are given by process."""
        return replace(self, hosts=tuple(hosts[d.process_index] for d in mesh.devices.flat))

    def levels(self, axes: Sequence[str]) -> list[str]:
        """Returns what people should know of a mesh over several hosts: which axes leave a host."""
        if len(set(self.hosts)) < 2:
            return []
        words = []
        for at, axis in enumerate(axes):
            changes = self._host_changes(at)
            where = "across hosts" if changes.all() else "within and across hosts"
            words.append(f"{axis} {where if changes.any() else 'within a host'}")
        return [f"The mesh is over {len(set(self.hosts))} hosts: {', '.join(words)}."]

    def crosses_hosts(self, at: int) -> bool:
        """Returns whether devices along the mesh axis at this position are of several hosts."""
        return len(set(self.hosts)) > 1 and bool(self._host_changes(at).any())

    def _host_changes(self, at: int) -> npt.NDArray[np.bool_]:
        """Returns where neighbours along a mesh axis are of different hosts."""
        changes: npt.NDArray[np.bool_] = (
            np.diff(np.array(self.hosts).reshape(self.mesh_shape), axis=at) != 0
        )
        return changes

    def show(self) -> str:
        """Returns one line: `4 cpu (2 cores of ...), jax 0.10.2`."""
        shape = "x".join(map(str, self.mesh_shape))
        kind = self.device_kind if self.platform != "cpu" else f"cpu ({self.host})"
        flags = f", {' '.join(self.flags)}" if self.flags else ""
        many = f" ({self.stand_ins} of them here, standing in)" if self.stand_ins else ""
        if self.hosts:
            hosts = len(set(self.hosts))
            many = f", {len(set(self.processes))} processes on {hosts} host{'s' * (hosts > 1)}"
        network = f", network {self.network}" if self.network else ""
        variables = "".join(f", {name}={value}" for name, value in self.environment)
        return f"{shape} {kind}{many}{network}, jax {self.jax}{flags}{variables}"

    def to_json(self) -> dict[str, Any]:
        """Returns plain data. Machines without stand-ins do not say so: measurements that were
        stored before there were any keep their names."""
        found = asdict(self)
        return found if self.stand_ins else {k: v for k, v in found.items() if k != "stand_ins"}


def _compiler() -> dict[str, Any]:
    """Returns the versions, settings and variables that a program depends on."""
    return {
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "flags": key_flags(os.environ),
        "settings": key_settings(),
        "environment": key_environment(os.environ),
    }


def _cpu() -> str:
    """Returns the processor and how many cores of it this process may use."""
    name = host.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:  # not Linux: the architecture must do
        found = None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {found[1].strip() if found else name}"
