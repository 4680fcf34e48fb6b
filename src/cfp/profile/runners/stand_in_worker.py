"""The worker whose devices stand in for those of a mesh that is not there.

    python -m cfp.profile.runners.stand_in_worker FD

It is a worker like the other (`worker`), but for three things: JAX is told of devices that are not
there, nobody waits for them, and a recording of a run becomes the program's schedule with its
measured kernels, which any network can be put under (`cfp.links.replay`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.profiler import ProfileData
from jax.sharding import Mesh

from cfp.links.kernels import Kernels, read_kernels
from cfp.links.schedule import NotReplayable, read_schedule
from cfp.profile.runners.executable import Executable
from cfp.profile.runners.job import MeshSpec, Shares, WorkerGroup
from cfp.profile.runners.recorded import KernelLines, Recorded, gpu_kernels, recorded_runs
from cfp.profile.runners.session import Session
from cfp.profile.runners.worker import main, mesh_of, take_settings

UNRECORDED = "the profiler recorded nothing of it, so that its time is not known"


class StandInSession(Session):
    """A session in which collectives take no time, or none that counts."""

    kernels: KernelLines = staticmethod(gpu_kernels)

    def waiting(self, mesh: Mesh) -> Callable[[], None]:
        """Returns a call that does nothing: the other processes are not there."""
        return lambda: None

    def time_shares(self, keys: Sequence[str]) -> dict[str, Shares]:
        """Returns the schedule of every program, or why there is none."""
        found = super().time_shares(keys)
        several = [key for key in keys if not self.alone(key)]
        return {
            key: found.get(key, Shares(0.0, 0.0, 0.0, unreplayed=UNRECORDED)) for key in several
        }

    def shares(self, data: ProfileData, marks: Mapping[str, str]) -> dict[str, Shares]:
        found = recorded_runs(data, marks, self.kernels)
        return {key: self._scheduled(key, one) for key, one in found.items()}

    def kernels_of(self, executable: Executable) -> Kernels | None:
        """Returns what says which other programs have the same kernels; None where a program cannot
        be replayed, which a run of it will say."""
        try:
            return read_kernels(str(executable.call.as_text()), self._axes())
        except NotReplayable:
            return None

    def _axes(self) -> dict[str, int]:
        return {str(name): int(size) for name, size in self.mesh.shape.items()}

    def _scheduled(self, key: str, run: Recorded) -> Shares:
        try:
            schedule = read_schedule(self.text(key), self._axes(), run.kernels_s)
        except NotReplayable as error:
            return Shares(0.0, 0.0, 0.0, unreplayed=str(error))
        compute_s = sum(run.kernels_s.values())
        return Shares(compute_s, 0.0, 0.0, schedule=schedule, host_s=run.host_s)


def open_gpus(spec: MeshSpec, settings: Mapping[str, Any], group: WorkerGroup | None) -> Mesh:
    """Returns a mesh of GPUs of which `spec.local` are there."""
    assert group is None, "one process stands in for all"
    take_settings(settings)
    update: Any = jax.config.update
    update("jax_platforms", "cuda,cpu")
    update("jax_cuda_visible_devices", ",".join(map(str, range(spec.local))))
    # partitions x hosts of each x devices of each host, which must be as many as there are
    update("jax_mock_gpu_topology", f"1x{len(spec.device_ids) // spec.local}x{spec.local}")
    found = len(jax.devices("gpu"))
    if found != len(spec.device_ids):
        raise ValueError(
            f"XLA shows {found} GPUs where {len(spec.device_ids)} were asked for: this version "
            "cannot stand in for so many"
        )
    return mesh_of(spec)


if __name__ == "__main__":
    main(int(sys.argv[1]), StandInSession, open_gpus)
