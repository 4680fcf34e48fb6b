"""Whatever a worker is told changes the key of what it measures, or is listed as harmless."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from cfp.profile.programs.key import key_of
from cfp.profile.programs.machine import Machine
from cfp.profile.runners import settings
from cfp.profile.runners.settings import (
    HARMLESS,
    IGNORED,
    LOCAL,
    key_environment,
    key_flags,
    key_settings,
    worker_environment,
    worker_settings,
)
from tests.profile.cases import mesh


def another(value: Any) -> Any:
    """A value of the same type that differs."""
    if isinstance(value, bool):
        return not value
    return f"{value or ''}other" if isinstance(value, str | None) else value + 1


def test_every_setting_the_worker_gets_is_in_the_key_or_listed_as_harmless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = mesh((4,))
    before, values = key_of(Machine.of(where)), dict(jax.config.values)
    unchanged = set()
    for name, value in worker_settings().items():
        monkeypatch.setattr(settings, "_values", lambda n=name, v=value: values | {n: another(v)})
        assert worker_settings()[name] == another(value)
        if key_of(Machine.of(where)) == before:
            unchanged.add(name)
    assert unchanged == HARMLESS.keys() & values.keys()


def test_every_setting_of_jax_goes_to_the_worker_or_is_listed_as_local() -> None:
    values = jax.config.values
    assert values.keys() - worker_settings().keys() == LOCAL.keys() & values.keys()
    assert not LOCAL.keys() & HARMLESS.keys()
    assert all([*LOCAL.values(), *HARMLESS.values(), *IGNORED.values()]), "each with its reason"


@pytest.mark.skipif(not jax.__version__.startswith("0.10."), reason="the names are JAX 0.10's")
def test_the_lists_name_settings_that_exist() -> None:
    assert {*LOCAL, *HARMLESS} <= jax.config.values.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [("jax_disable_most_optimizations", True), ("jax_cpu_collectives_implementation", "mpi")],
)
def test_a_setting_made_in_python(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, update = key_settings(), jax.config.update
    was = jax.config.values[name]
    try:
        update(name, value)
        assert key_settings() != before
        assert worker_settings()[name] == value
    finally:
        update(name, was)
    assert key_settings() == before


def test_a_setting_of_this_thread_alone() -> None:
    before = key_settings()
    with jax.default_matmul_precision("float32"):
        assert dict(key_settings())["jax_default_matmul_precision"] == "float32"
        assert worker_settings()["jax_default_matmul_precision"] == "float32"
    assert key_settings() == before


def test_a_setting_made_in_the_environment() -> None:
    """It is read when JAX is imported, by the planner; the worker is told, and reads nothing."""
    code = "from cfp.profile.runners.settings import key_settings; print(key_settings())"
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_DEBUG_NANS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    expected = dict(key_settings()) | {"jax_disable_most_optimizations": "True"}
    assert done.stdout.strip() == str(tuple(expected.items()))
    kept = worker_environment({**environment, "CUDA_VISIBLE_DEVICES": "0"})
    assert not [name for name in kept if name.lower() in jax.config.values]
    assert kept.keys() >= {"PATH", "CUDA_VISIBLE_DEVICES"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("--a=1 --b=2", "--b=2   --a=1", True),
        ("--a=1", "--a=1 --xla_force_host_platform_device_count=512", True),
        ("--a=1", "--xla_dump_to=/somewhere --xla_dump_hlo_as_text --a=1", True),
        ("--a=1", "--a=1 --xla_gpu_dump_autotune_logs_to=f --vmodule=a=1,b=2 --v=3", True),
        ("--a=1", "--a=1 --xla_gpu_load_autotune_results_from=f", False),
        ("--a=1", "--a=2", False),
        ("--a=1", "", False),
        ("--a=1 --a=2", "--a=2", True),  # the last counts
        ("--a=1 --a=2", "--a=2 --a=1", False),
    ],
)
def test_flags(one: str, other: str, same: bool) -> None:
    for variable in settings.FLAGS:
        assert (key_flags({variable: one}) == key_flags({variable: other})) is same


def test_flags_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--b=2\n--a=1\n")
    assert key_flags({"XLA_FLAGS": str(file)}) == ("--a=1", "--b=2")
    assert key_flags({"XLA_FLAGS": str(tmp_path / "none")}) == (str(tmp_path / "none"),)


def test_flags_of_two_compilers_are_told_apart() -> None:
    given = {"XLA_FLAGS": "--a=1", "LIBTPU_INIT_ARGS": "--a=2"}
    assert key_flags(given) == ("--a=1", "--a=2")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("NCCL_ALGO", True),
        ("NCCL_P2P_DISABLE", True),
        ("NCCL_DEBUG", False),
        ("NVIDIA_TF32_OVERRIDE", True),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", True),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", False),
        ("CUDA_DEVICE_MAX_CONNECTIONS", True),
        ("CUDA_VISIBLE_DEVICES", False),
        ("TF_CUDNN_DETERMINISTIC", True),
        ("TF_CPP_MIN_LOG_LEVEL", False),
        ("NPROC", True),
        ("LD_PRELOAD", True),
        ("PATH", False),
    ],
)
def test_the_environment(name: str, counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bool(key_environment({name: "1"})) is counts
    assert not key_environment({name: ""})
    where = mesh((4,))
    before = Machine.of(where)
    monkeypatch.setenv(name, os.environ.get(name, "") + "1")
    assert (key_of(Machine.of(where)) != key_of(before)) is counts
    assert (f"{name}=1" in Machine.of(where).show()) is counts
