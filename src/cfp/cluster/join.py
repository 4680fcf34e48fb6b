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
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from cfp.cluster.leash import follow
from cfp.cluster.ports import join_address, listening_host, split_address, why_not
from cfp.cluster.rendezvous import meet
from cfp.cluster.team import Team
from cfp.errors import CfpError

JOIN_S = 120  # for all processes to be there: schedulers may start hosts a minute apart
ABORT_S = 30  # later, JAX would abort: long enough for us to be first on a busy machine
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
MPI_RANK, MPI_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
MPI_KNOWN = "OMPI_MCA_orte_hnp_uri"  # set by Open MPI up to 4, which JAX goes by


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
        """Gives the team, if this is one of several processes; CPU processes make `devices`
        together.

        `stays` keeps JAX's runtime, to run programs in this very process."""
        follow()
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
        listens = None  # JAX decides where it knows the job
        if self.coordinator is not None:
            host, port = split_address(self.coordinator)
            listens = join_address(listening_host(host), port)
            if self.index == 0 and (why := why_not(listening_host(host), port)):
                raise CfpError(
                    f"Process 0 {why}. Give all processes a --coordinator with another port."
                )
        try:
            with _ended_after(JOIN_S, self._alone(f"not all are there after {JOIN_S} s")):
                jax.distributed.initialize(
                    self.coordinator,
                    self.count,
                    self.index,
                    initialization_timeout=JOIN_S + ABORT_S,
                    coordinator_bind_address=listens,
                )
        except Exception as error:  # JAX raises it, or what it asks about the cluster
            line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise CfpError(self._alone(line)) from error

    def _alone(self, why: str) -> str:
        """Returns the sentence for a process that cannot join the others."""
        where = f" at {self.coordinator}" if self.coordinator else ""
        way = "each with its own --process-id, " if self.index is not None else ""
        if self.coordinator is None:
            way = "give them --coordinator HOST:PORT of process 0, "
        return (
            f"Cannot join the other processes{where}: {why}. Start all of them, {way}and let them "
            "reach process 0."
        )

    def _filled(self) -> Membership:
        """Returns the membership with what the environment tells: Open MPI 5 does not tell JAX
        where process 0 is; told that, the rest is known."""
        inside = os.environ
        if self.coordinator is None or self.index is not None or MPI_RANK not in inside:
            return self
        return Membership(self.coordinator, int(inside[MPI_SIZE]), int(inside[MPI_RANK]))

    def _others(self) -> tuple[bool, int | None]:
        """Returns whether there are others, and how many processes in all where that is known."""
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
        split_address(self.coordinator)
        return self.count > 1, self.count


@contextlib.contextmanager
def _ended_after(seconds: float, sentence: str) -> Iterator[None]:
    """Ends this process with one line if the block takes longer: JAX does not come back from there
    with an error, but aborts."""
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            sys.stderr.write(f"cfp: {sentence}\n")
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Sends what libraries print meanwhile to stderr: Gloo says that it is connected, and stdout is
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
    """Returns the same, as the environment that a launcher made says it."""
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
    """Makes this process's share of the CPU devices."""
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


def shareable(device: Any) -> bool:
    """Returns whether another process can open this device, too.

    CPUs can always be shared, TPUs never. A GPU can unless this process has taken most of its
    memory in advance.
    """
    if device.platform == "cpu":
        return True
    if device.platform != "gpu":
        return False
    taken = device.memory_stats() or {}
    return not taken.get("pool_bytes", 0) > taken.get("bytes_limit", 0) / 2
