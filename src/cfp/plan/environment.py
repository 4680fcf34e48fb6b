"""Where a plan was made: what a measured answer depends on besides the step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from importlib import metadata
from typing import Any

import jax
from jax.sharding import AbstractMesh

from cfp.layouts import AnyMesh
from cfp.version import VERSION


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a plan was made. For a mesh that is not there `platform` and `device_kind` are empty,
    or those of the device that stood in for it, and `processes` is 0."""

    cfp: str
    jax: str
    jaxlib: str
    platform: str
    device_kind: str
    processes: int

    @staticmethod
    def of(mesh: AnyMesh) -> Environment:
        if isinstance(mesh, AbstractMesh):
            return Environment(VERSION, jax.__version__, metadata.version("jaxlib"), "", "", 0)
        device = mesh.devices.flat[0]
        return Environment(
            cfp=VERSION,
            jax=jax.__version__,
            jaxlib=metadata.version("jaxlib"),
            platform=device.platform,
            device_kind=device.device_kind,
            processes=len({d.process_index for d in mesh.devices.flat}),
        )

    def differences(self, other: Environment) -> list[str]:
        """Returns texts like `jax 0.10.2, here 0.11.2`, one per field that differs."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{field.name} {mine[field.name]}, here {theirs[field.name]}"
            for field in fields(self)
            if mine[field.name] != theirs[field.name] and mine[field.name] and theirs[field.name]
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
