"""Joins a process to the others of a job, as the commands do it.

JAX knows the job from Slurm, Open MPI and Kubernetes by itself; otherwise three options say it. JAX
ends every process of a job when its runtime loses one, with a stack trace. So commands that only
measure leave that runtime once they have met, if their workers, which have one of their own, can
have the devices.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from cfp.cluster.meet import meet
from cfp.cluster.share import shareable
from cfp.cluster.team import Team
from cfp.errors import CfpError

JOIN_S = 120
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
MPI_RANK, MPI_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
MPI_KNOWN = "OMPI_MCA_orte_hnp_uri"  # of Open MPI up to 4: what JAX goes by


@dataclass(frozen=True, slots=True)
class Membership:
    """Who a process is: all three, or none to ask the environment."""

    coordinator: str | None = None
    count: int | None = None
    index: int | None = None

    @contextlib.contextmanager
    def joined(
        self, devices: int, platform: str | None, *, stays: bool = False
    ) -> Iterator[Team | None]:
        """The team, if this is one of several processes; CPU processes make `devices` together.

        `stays` keeps JAX's runtime, to run programs in this very process."""
        who = self._filled()
        joins, count = who._others()
        if not joins:
            yield None
            return
        if platform == "cpu":
            _make_cpus(devices, count)
        if not stays:
            os.environ.setdefault(PREALLOCATE, "false")  # GPUs' memory is for the workers
        with _quiet_stdout():
            who._initialize()
            with meet() as team:
                if not stays and shareable(jax.local_devices()[0]):
                    leave: Any = jax.distributed.shutdown
                    leave()
                yield team

    def _initialize(self) -> None:
        update: Any = jax.config.update
        update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
        try:
            jax.distributed.initialize(
                self.coordinator, self.count, self.index, initialization_timeout=JOIN_S
            )
        except Exception as error:  # of JAX, or of what it asks about the cluster
            line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            where = f" at {self.coordinator}" if self.coordinator else ""
            way = "each with its own --process-id, " if self.index is not None else ""
            if self.coordinator is None:
                way = "give them --coordinator HOST:PORT of process 0, "
            raise CfpError(
                f"Cannot join the other processes{where}: {line}. Start all of them, {way}and let "
                "them reach process 0."
            ) from error

    def _filled(self) -> Membership:
        """Open MPI 5 does not tell JAX where process 0 is; told that, the rest is known."""
        inside = os.environ
        if self.coordinator is None or self.index is not None or MPI_RANK not in inside:
            return self
        return Membership(self.coordinator, int(inside[MPI_SIZE]), int(inside[MPI_RANK]))

    def _others(self) -> tuple[bool, int | None]:
        """Whether there are others, and how many processes in all where that is known."""
        if self.coordinator is None and self.index is None:
            joins, count = _launched()
            if joins or self.count is None:
                return joins, self.count or count
        if self.coordinator is None or self.count is None or self.index is None:
            raise CfpError(
                "--coordinator HOST:PORT, --num-processes and --process-id go together: give all "
                "three, or none under srun, mpirun or Kubernetes."
            )
        if not 0 <= self.index < self.count:
            raise CfpError(
                f"--process-id is {self.index}: of {self.count} processes they are 0 to "
                f"{self.count - 1}."
            )
        if ":" not in self.coordinator:
            raise CfpError(f"--coordinator is {self.coordinator!r}: write HOST:PORT.")
        return self.count > 1, self.count


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """What libraries print meanwhile goes to stderr: Gloo says that it is connected, and stdout is
    for results."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _launched() -> tuple[bool, int | None]:
    """The same, by the environment that a launcher made."""
    inside = os.environ
    if MPI_SIZE in inside:
        count = int(inside[MPI_SIZE])
        if count > 1 and MPI_KNOWN not in inside:
            raise CfpError(
                "This Open MPI does not tell JAX where process 0 is: give all processes "
                "--coordinator HOST:PORT, with its host and any free port."
            )
    elif "SLURM_STEP_NODELIST" in inside and "SLURM_PROCID" in inside:  # srun's, not a shell's
        count = int(inside.get("SLURM_STEP_NUM_TASKS", inside.get("SLURM_NTASKS", "1")))
    else:  # an indexed job; how many there are, JAX asks the cluster
        return "KUBERNETES_SERVICE_HOST" in inside and "JOB_COMPLETION_INDEX" in inside, None
    return count > 1, count


def _make_cpus(devices: int, count: int | None) -> None:
    """This process's share of them."""
    if count is None:
        raise CfpError("Kubernetes does not say how many processes there are: add --num-processes.")
    if devices % count:
        raise CfpError(
            f"A mesh of {devices} devices does not divide among {count} processes: use another "
            "mesh, or another number of processes."
        )
    update: Any = jax.config.update
    update("jax_platforms", "cpu")
    update("jax_num_cpu_devices", devices // count)
