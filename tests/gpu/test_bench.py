"""The evaluation on a GPU, as far as it needs none: its cases, its store and its page."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from bench.gpu import beside, limits
from bench.gpu.__main__ import main
from bench.gpu.cases import MESHES, NETWORKS, Case, cases, free_replays, full_steps
from bench.gpu.table import page, read
from jax.sharding import AbstractMesh

from cfp.errors import CfpError
from cfp.links import find_links
from cfp.links.schedule import Moment, Schedule, Transfer
from cfp.planning.audit import NO_TIME
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.store import Record, Store
from cfp.profile.runners import stand_in
from cfp.profile.runners.job import Memory, Shares
from cfp.profile.runners.stand_in import NEEDS, LocalDevices, StandIn
from tests.planning.absent import make_step as small_step
from tests.profile.runners.cpu_stand_in import CPU

ROW = {
    "case": "llama-7b-b16-8-h200_nvlink",
    "device": "NVIDIA H200",
    "environment": "JAX 0.11.2",
    "seconds": 500.0,
    "programs": 40,
    "loaded": 0,
    "predicted_s": 0.337,
    "replayed_s": 0.343,
    "communication_s": 0.05,
    "exposed_s": 0.01,
    "memory_bytes": 77 * 2**30,
    "predicted_bytes": 80 * 2**30,
    "mfu": 0.4,
    "ratios": {"fsdp": 1.04, "megatron": "does not run: out of memory: it needs 9 GiB"},
    "splits": "1x batch; 32x batch, batch (fsdp)",
    "free": {"full step: a": [0.343, 0.340], "full step: b": [0.356, 0.320]},
    "notes": [],
}


def test_the_page(tmp_path: Path) -> None:
    other = {**ROW, "case": "moe", "replayed_s": None, "exposed_s": None, "mfu": None, "free": {}}
    for name, row in (("a", ROW), ("b", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(row))
    text = page(read(tmp_path), "python -m bench.gpu")
    assert (
        "| 500 s | 40 (0) | 337.0 ms | 343.0 ms | -1.7% | 10.0 ms | 40.0% | 77.0 (80.0) GiB" in text
    )
    assert "| moe | 500 s | 40 (0) | 337.0 ms | - | - | - | - | 77.0 (80.0) GiB |" in text
    assert "Planned within 600 s: 2 of 2. Predicted within 5% of the replayed step: 1 of 2." in text
    assert "- moe: 1x batch; 32x batch, batch (fsdp)" in text
    assert "| llama-7b-b16-8-h200_nvlink | 1.04 | does not run: out of memory |" in text
    assert "| llama-7b-b16-8-h200_nvlink | 2 | 5.5% | 10.1% |" in text


def test_the_page_of_memory_limits() -> None:
    steps = {"cfp": (0.35, 30 * 2**30), "fsdp": (0.3, 40 * 2**30)}
    row = {
        "case": "llama-36GiB",
        "device": "NVIDIA H200",
        "environment": "JAX 0.11.2",
        "seconds": 150.0,
        "limit_bytes": 36 * 2**30,
        "steps": steps,
        "why": {"zero1": "out of memory"},
        "predicted": (0.34, 31 * 2**30),
        "splits": "32x batch (keeps inputs)",
    }
    none = {**row, "case": "none", "steps": {}, "why": {"cfp": "No plan fits."}, "splits": ""}
    text = limits.page([row, {**none, "predicted": None}])
    assert "| case | planned in | cfp | zero1 | fsdp | megatron_sp | fsdp, checkpointed |" in text
    assert "| llama-36GiB | 150 s | 350.0 (30.0) | - | - | - | - | 340.0 (31.0) |" in text
    assert "| none | 150 s | - | - | - | - | - | - |" in text
    assert "- llama-36GiB: 32x batch (keeps inputs)" in text
    assert "- none: No plan fits." in text


def test_every_case_has_a_file_and_links_that_fit() -> None:
    found = list(cases(["llama", "moe"], [*MESHES], NETWORKS))
    assert len({case.file for case in found}) == len(found) == 6
    for case in found:
        find_links(case.links, {f"a{i}": size for i, size in enumerate(case.mesh)})
    assert Case("gpt", (2, 8), "a,b").file == "gpt-6.7b-b16-2x8-a+b.json"
    assert Case("gpt", (8,), "a", memory="36GiB").name == "gpt-6.7b-b16-8-a-36GiB"


def test_free_replays_are_of_full_steps_of_the_mesh(tmp_path: Path) -> None:
    schedule = Schedule((Moment(0.25, Transfer("all-reduce", ("x",), 8), 0), Moment(0.5)))
    shares = Shares(0.75, 0.0, 0.0, schedule=schedule, host_s=0.1)
    memory = Memory(1, 1, 1, 0)
    rows = {
        "8 NVIDIA H200 (1 of them here, standing in)": ("full step: ours", "segment 0: batch"),
        "2x8 NVIDIA H200 (1 of them here, standing in)": ("full step: theirs",),
    }
    with Store.open(tmp_path) as store:
        for where, names in rows.items():
            for name in names:
                key, runs_s = f"{where}{name}", (0.8, 0.7)
                one = Measurement(key, name, runs_s, memory=memory, shares=shares)
                store.put(Record(one.key, "p", name, where, one.to_json(), time.time()))
    (ours,) = full_steps(tmp_path, (8,)).values()
    assert ours.name == "full step: ours"
    assert list(free_replays({"key": ours}).values()) == [(0.65, 0.75)]
    assert not full_steps(tmp_path, (8,), but=[ours.key])


def test_templates_that_a_budget_left_no_time_for_run_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Virtual CPU devices take the GPU's place; cases that differ in their links share the run."""
    monkeypatch.setattr(stand_in, "GPU", CPU)
    monkeypatch.setattr(Case, "step", lambda case: small_step())
    monkeypatch.setattr(Case, "abstract_mesh", AbstractMesh((4,), ("x",)))
    late = {"fsdp": f"not run: {NO_TIME}", "data_parallel": 2.0}
    files = [tmp_path / "gpu" / case.file for case in cases(["gpt"], [(8,)], NETWORKS)]
    files[0].parent.mkdir()
    for path in files:
        path.write_text(json.dumps({**ROW, "case": path.stem, "ratios": late}))
    words = ["--models", "gpt", "--meshes", "8", "--templates", "data_parallel", "fsdp"]
    store = tmp_path / "store"
    assert beside.main([*words, "--out", str(files[0].parent), "--cache", str(store)]) == 0
    fast, slow = (json.loads(path.read_text())["ratios"] for path in files)
    assert fast["data_parallel"] == slow["data_parallel"] == 2.0
    assert 0 < fast["fsdp"] < slow["fsdp"]
    assert len(full_steps(store, (4,))) == 1


def test_without_a_gpu_it_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "GPU", StandIn(missing, "", ()))
    for of in (main, limits.main, beside.main):
        assert of(["--out", str(tmp_path / "gpu")]) == 1
        assert "standing in for its devices" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


def missing() -> LocalDevices:
    raise CfpError(f"{NEEDS}.")
