"""Which GPUs stand in, as a driver says it; there is none here, so that it is a double."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from jax.sharding import AbstractMesh, AxisType

from cfp.errors import CfpError
from cfp.profile.api import tuned_folder
from cfp.profile.programs.machine import Machine
from cfp.profile.runners import process, stand_in
from cfp.profile.runners.executable import Executable
from cfp.profile.runners.job import Compiled, Memory
from cfp.profile.runners.stand_in import (
    TUNED,
    LocalDevices,
    find_gpus,
    stand_in_runner,
    tuning_flags,
    used,
)
from cfp.profile.runners.stand_in_worker import StandInSession, gpu_kernels
from tests.profile.runners.cpu_stand_in import CPU
from tests.profile.runners.test_session import compiled, step_job

GIB = 2**30
NOTHING = Memory(0, 0, 0, 0)


@dataclass
class Driver:
    """What `libcuda.so.1` answers."""

    names: tuple[str, ...] = ("NVIDIA H200",)
    version: int = 13000
    fails: int = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.fails

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.names)
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.version
        return 0

    def cuDeviceGetName(self, text: Any, size: int, device: int) -> int:  # noqa: N802
        text.value = self.names[device].encode()
        return 0

    def cuDeviceTotalMem_v2(self, total: Any, device: int) -> int:  # noqa: N802
        total._obj.value = 140 * GIB
        return 0


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's plugin for CUDA 13 is installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        stand_in.importlib.util,
        "find_spec",
        lambda name: object() if name == "jax_cuda13_plugin" else real(name),
    )
    for name in stand_in.FRACTION_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def loads(driver: Driver) -> Callable[[str], Any]:
    return lambda name: driver


@pytest.mark.usefixtures("plugin")
def test_the_driver_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_gpus(loads(Driver()))
    assert found == LocalDevices("gpu", "NVIDIA H200", 1, 105 * GIB)
    mixed = Driver(("NVIDIA H200", "NVIDIA H200", "NVIDIA L40S", "NVIDIA H200"))
    assert find_gpus(loads(mixed)).count == 2, "those of one kind with the first, in a row"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert find_gpus(loads(Driver())).memory_bytes == 70 * GIB
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "much")
    with pytest.raises(CfpError, match="MEM_FRACTION is 'much': give a part of 1"):
        find_gpus(loads(Driver()))


def missing(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("load", "why"),
    [
        (missing, "this machine has no NVIDIA driver"),
        (loads(Driver(fails=100)), "shows no GPU"),
        (loads(Driver(names=())), "shows no GPU"),
        (loads(Driver(version=12040)), "is for CUDA 12, and this JAX needs CUDA 13"),
    ],
)
def test_what_is_missing_is_one_sentence(load: Callable[[str], Any], why: str) -> None:
    with pytest.raises(CfpError, match=why):
        find_gpus(load)


def test_a_jax_without_cuda() -> None:
    with pytest.raises(CfpError, match=r'without CUDA: pip install "jax\[cuda13\]"'):
        find_gpus(loads(Driver()))


@pytest.mark.parametrize(
    ("local", "mesh", "count"), [(1, 16, 1), (8, 64, 8), (8, 12, 4), (3, 8, 1)]
)
def test_as_many_stand_in_as_divide_the_mesh(local: int, mesh: int, count: int) -> None:
    assert used(LocalDevices("gpu", "any", local, None), AbstractMesh((mesh,), ("x",))) == count


def test_the_worker_reads_a_gpus_kernels() -> None:
    assert StandInSession.kernels is gpu_kernels
    assert ctypes.CDLL is find_gpus.__defaults__[0]  # type: ignore[index]


def test_jaxs_own_cache_of_compiled_programs_may_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that loads a program instead of compiling it says the same of it: what it needs,
    what it sends, and which kernels it has; and it runs. (The worker has the cache that the caller
    has: here it is given to the worker alone.)"""
    cache = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    passed = process.worker_settings()
    assert cache.keys() <= passed.keys()
    monkeypatch.setattr(process, "worker_settings", lambda: {**passed, **cache})
    mesh = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    job = step_job(mesh, "step")
    answers: list[Compiled] = []
    for _ in range(2):
        before = {path.name for path in tmp_path.iterdir()}
        with stand_in_runner(CPU, CPU.find(), mesh, tmp_path / "tuned") as runner:
            (answer,) = compiled(runner, job).values()
            assert isinstance(answer, Compiled)
            answers.append(answer)
            (shares,) = runner.time_shares(["step"], 60).values()
        assert shares.schedule is not None
    written = {path.name for path in tmp_path.iterdir() if path.name.endswith("-cache")}
    assert written, "the first worker kept what it compiled"
    assert written <= before, "and the second one compiled nothing"
    first, second = answers
    assert first.kernels is not None
    assert (first.memory, first.collectives) == (second.memory, second.collectives)
    assert first.kernels == second.kernels


def test_where_xla_keeps_its_choices_of_kernels(tmp_path: Path) -> None:
    """In the store, in a folder of this compiler and this kind of device, the same for all meshes;
    or where the caller's own flags say."""
    folder = tmp_path / "with a space"
    (flag,) = tuning_flags(folder, {"XLA_FLAGS": "--xla_gpu_autotune_level=2"})
    assert folder.is_dir()
    assert flag == f'--xla_gpu_per_fusion_autotune_cache_dir="{folder}"'
    assert tuning_flags(tmp_path / "other", {"XLA_FLAGS": f"{TUNED}=mine"}) == ()
    assert not (tmp_path / "other").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(CfpError, match=r"file/below cannot be made .*give another folder"):
        tuning_flags(tmp_path / "file" / "below", {})

    def of(local: LocalDevices, *mesh: int) -> Path:
        there = AbstractMesh(mesh, tuple("xyz"[: len(mesh)]))
        return tuned_folder(Machine.of(there, local), tmp_path)

    one, eight = (LocalDevices("gpu", "NVIDIA H200", count, None) for count in (1, 8))
    assert len({of(one, 8), of(one, 2, 4), of(one, 16), of(eight, 16)}) == 1
    assert of(one, 8).parent.parent == tmp_path
    assert of(one, 8) != of(LocalDevices("gpu", "NVIDIA L40S", 1, None), 8)


def test_a_program_without_a_schedule_tells_nothing_of_its_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is run, and that says why it cannot be replayed."""
    text = "HloModule jit_f, is_scheduled=true, num_partitions=2\n\nENTRY %main () -> () {\n}\n"
    session = object.__new__(StandInSession)
    monkeypatch.setattr(StandInSession, "_axes", lambda self: {"x": 2})
    scheduled, other = (
        Executable(
            cast(Any, SimpleNamespace(as_text=lambda said=said: said)), (), (), NOTHING, None
        )
        for said in (text, text.replace("is_scheduled=true, ", ""))
    )
    assert session.kernels_of(scheduled) is not None
    assert session.kernels_of(other) is None
