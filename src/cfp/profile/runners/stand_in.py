"""Local GPUs stand in for a mesh that is not there: who they are, and the runner that uses them.

XLA can be told that there are more GPUs than there are (`jax_mock_gpu_topology`). It then compiles
the true program of the whole mesh, and a local GPU runs its own part of it at full speed, while
collectives do nothing. All of that happens in a worker (`stand_in_worker`): JAX in this process is
as it was. How many GPUs there are, of which kind and with which memory, the driver is asked
directly, since JAX would open them to say so.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh

from cfp.errors import CfpError
from cfp.profile.runners.job import MeshSpec
from cfp.profile.runners.process import ALONE, ProcessRunner

NEEDS = (
    "A mesh that is not there is planned with a local GPU standing in for its devices: run this on "
    "a machine with one GPU of the same kind, or give a mesh of devices that are here"
)
PLUGINS = {"jax_cuda13_plugin": 13, "jax_cuda12_plugin": 12}  # JAX's, and the CUDA that each needs
FRACTION = 0.75  # of a GPU's memory, which JAX takes where no variable says otherwise
FRACTION_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# a recording names the kernels inside a CUDA graph less well, and without graphs the host has more
# to do: the device's time is what counts here
NO_GRAPHS = "--xla_gpu_enable_command_buffer="
# where XLA keeps which kernel was the fastest for what: it tries them while it compiles, and the
# worker of another mesh shall choose the same ones, or their programs have no kernels in common
TUNED = "--xla_gpu_per_fusion_autotune_cache_dir"


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """The devices of one kind that can stand in; `memory_bytes` is what programs may have of each,
    None where nobody says."""

    platform: str
    kind: str
    count: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class StandIn:
    """What stands in: how it is found, and the module that is its worker."""

    find: Callable[[], LocalDevices]
    worker: str
    flags: tuple[str, ...]


def find_gpus(load: Callable[[str], Any] = ctypes.CDLL) -> LocalDevices:
    """Returns the machine's GPUs that are of one kind with the first, as the driver says."""
    plugin = next((name for name in PLUGINS if importlib.util.find_spec(name)), None)
    try:
        driver = load("libcuda.so.1")
    except OSError:
        raise CfpError(f"{NEEDS}; this machine has no NVIDIA driver.") from None
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        raise CfpError(f"{NEEDS}; the NVIDIA driver of this machine shows no GPU.")
    if plugin is None:
        raise CfpError(f'{NEEDS}; this JAX was installed without CUDA: pip install "jax[cuda13]".')
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value // 1000 < PLUGINS[plugin]:
        raise CfpError(
            f"The NVIDIA driver of this machine is for CUDA {version.value // 1000}, and this JAX "
            f"needs CUDA {PLUGINS[plugin]}: update the driver, or install an older JAX."
        )
    names = [_name(driver, device) for device in range(count.value)]
    total = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    memory_bytes = int(total.value * _fraction(os.environ.get))
    alike = len([*itertools.takewhile(lambda name: name == names[0], names)])
    return LocalDevices("gpu", names[0], alike, memory_bytes)


def _name(driver: Any, device: int) -> str:
    text = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(text, len(text), device)
    return text.value.decode()


def _fraction(variable: Callable[[str], str | None]) -> float:
    """Returns the part of a GPU's memory that JAX will have, by the variables that set it."""
    for name in FRACTION_VARIABLES:
        if text := variable(name):
            try:
                return float(text)
            except ValueError:
                raise CfpError(f"{name} is {text!r}: give a part of 1, such as 0.75.") from None
    return FRACTION


GPU = StandIn(find_gpus, "cfp.profile.runners.stand_in_worker", (ALONE, NO_GRAPHS))


def used(local: LocalDevices, mesh: AbstractMesh) -> int:
    """Returns how many of the local devices stand in: as many as divide the mesh evenly."""
    return math.gcd(local.count, mesh.size)


def tuning_flags(folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the flag that makes XLA keep its choices of kernels in a folder, which is made; none
    where the caller's flags name another."""
    if TUNED in environment.get("XLA_FLAGS", ""):
        return ()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CfpError(
            f"The folder {folder} cannot be made ({error.strerror}): give another folder with "
            "cache_dir / --cache-dir."
        ) from None
    return (f'{TUNED}="{folder}"',)  # in quotation marks: flags end at a space


def stand_in_runner(
    standing: StandIn, local: LocalDevices, mesh: AbstractMesh, tuned: Path
) -> ProcessRunner:
    """Returns the runner whose worker has the local devices stand in for those of the mesh; XLA
    keeps its choices of kernels in the folder `tuned`."""
    names = tuple(map(str, mesh.axis_names))
    ids = tuple(range(mesh.size))
    spec = MeshSpec(local.platform, ids, mesh.axis_sizes, names, used(local, mesh))
    command = [sys.executable, "-P", "-m", standing.worker]
    flags = (*standing.flags, *tuning_flags(tuned, os.environ))
    return ProcessRunner(spec, command=command, flags=flags)
