"""Planning for a mesh that is not there, from end to end: the GPU alone is a double, whose place
virtual CPU devices take in the worker (`cpu_stand_in`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner
from jax.sharding import AbstractMesh, AxisType, Mesh

import cfp
from cfp.cli.entry import cli
from cfp.errors import CfpError
from cfp.links import find_links
from cfp.profile.measure.confidence import RECORDED, Verdict
from cfp.profile.measure.measurement import Measurement, Provenance
from cfp.profile.measure.store import Store
from cfp.profile.runners import stand_in
from tests.planning.absent import make_step
from tests.profile.runners.cpu_stand_in import CPU, MEMORY_BYTES

DEVICES = 4
TARGET = "tests.planning.absent:make_step"
FAST, SLOW = "h200_nvlink", "l40s_pcie"


def absent() -> AbstractMesh:
    return AbstractMesh((DEVICES,), ("x",))


@pytest.fixture(scope="module")
def standing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_in, "GPU", CPU)
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def plan(standing: None, cache: Path) -> cfp.Plan:
    step, args = make_step()
    return cfp.plan(
        step, *args, mesh=absent(), links=FAST, cache_dir=cache, audit=1, beside=["data_parallel"]
    )


def test_a_plan_for_devices_that_are_not_there(plan: cfp.Plan) -> None:
    evidence = plan.evidence
    assert evidence is not None
    assert evidence.links is not None
    assert evidence.links.by_axis == (("x", FAST),)
    assert evidence.memory_limit_bytes == int(MEMORY_BYTES * 0.95)
    assert (plan.environment.platform, plan.environment.processes) == ("cpu", 0)
    own = evidence.own
    assert own is not None
    assert own.provenance is Provenance.REPLAYED
    assert own.communication_s is not None
    assert own.exposed_s is not None
    assert 0 < own.exposed_s <= own.communication_s < own.time_s
    assert own.error_s == pytest.approx((evidence.links.error or 0) * own.communication_s)
    said = plan.show()
    assert "Nothing ran on this mesh: 1 cpu stood in for its 4 devices." in said
    assert "The link h200_nvlink is between NVIDIA H200 devices, and cpu stood in" in " ".join(
        said.split()
    )
    assert "Full steps replayed, with the templates" in said
    assert "Measured:" not in said


def test_what_is_stored_does_for_any_network(plan: cfp.Plan, cache: Path) -> None:
    """On a slower network the same measurements make longer times. They are not made again; what
    the search wants to know besides, for a network on which other options are best, is."""
    with Store.open(cache) as store:
        rows = [Measurement.from_json(one.document) for one in store.entries()]
    scheduled = [one for one in rows if one.shares is not None and one.shares.schedule is not None]
    assert len(scheduled) >= len(rows) - 1, "all but the step on one device alone"
    fast, slow = (find_links(name, {"x": DEVICES}) for name in (FAST, SLOW))
    for one in scheduled:
        assert one.replayed(fast).time_s <= one.replayed(slow).time_s
    step, args = make_step()
    other = cfp.plan(step, *args, mesh=absent(), links=SLOW, cache_dir=cache, audit=False)
    assert other.evidence is not None
    assert other.evidence.loaded > other.evidence.programs / 2
    assert plan.evidence is not None
    assert plan.evidence.loaded == 0


def test_the_plan_is_an_ordinary_one(plan: cfp.Plan, tmp_path: Path) -> None:
    """It is saved, read again, and runs where its mesh is; before that it says what it needs."""
    plan.save(tmp_path / "plan.json")
    plan.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "replayed, not measured" in page
    assert "All times were measured" not in page
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["evidence"]["links"]["by_axis"] == [["x", FAST]]
    assert document["evidence"]["confirmed"][0]["provenance"] == "replayed"

    step, args = make_step()
    for refused in (lambda: plan.jit(step), lambda: plan.place(*args), plan.memory_bytes):
        with pytest.raises(CfpError, match="needs the devices of the mesh, and this plan is for"):
            refused()
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,))
    assert isinstance(mesh, Mesh)
    loaded = cfp.load(tmp_path / "plan.json", mesh=mesh)
    assert loaded.evidence == plan.evidence
    assert cfp.verify(step, *args, plan=loaded).outputs


def test_plans_within_the_error_of_the_links_are_level(plan: cfp.Plan) -> None:
    assert plan.evidence is not None
    own = plan.evidence.own
    assert own is not None
    assert own.measured_s is not None
    slower = own.measured_s + 0.9 * own.error_s
    runs = tuple(run * slower / own.measured_s for run in own.runs_s)
    other = replace(own, measured_s=slower, runs_s=runs)
    assert other.beside(own).verdict is Verdict.LEVEL
    off_s = own.error_s + 1.1 * RECORDED * own.measured_s
    apart = replace(other, measured_s=own.measured_s + 1.1 * off_s, runs_s=own.runs_s)
    assert apart.beside(own).verdict is Verdict.SLOWER, "the host's runs have no say"
    assert own.beside(apart).verdict is Verdict.FASTER


@pytest.mark.usefixtures("plan")
def test_the_commands(cache: Path, tmp_path: Path) -> None:
    """What was measured before is not measured again, so these are quick."""

    def run(*words: str) -> str:
        found = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return " ".join(found.stdout.split())

    where = ["--mesh", str(DEVICES), "--links", FAST, "--cache-dir", str(cache)]
    out = tmp_path / "plan.json"
    said = run("plan", TARGET, *where, "--audit", "1", "--out", str(out))
    assert "Replayed:" in said
    said = run("explain", str(out))
    assert "Nothing ran on this mesh" in said
    said = run("profile", TARGET, *where)
    assert "1 of them here, standing in" in said
    said = run("template", "fsdp", TARGET, *where[:4], "--out", str(tmp_path / "fsdp.json"))
    assert "Made without devices" in said
    said = run("compare", "--links", FAST, "--plans", f"{out},fsdp", "--rounds", "5")
    assert "Full steps, replayed, 5 rounds of every plan" in said
    assert "plan.json: predicted" in said


def test_meshes_share_the_kernels_that_they_have_in_common(plan: cfp.Plan, cache: Path) -> None:
    """Of 2x2, options that divide the work by four as those of 4 do are compiled and not run: their
    kernels are those that were measured, and collectives along both axes are their own."""
    step, args = make_step()
    mesh = AbstractMesh((2, 2), ("x", "y"))
    other = cfp.plan(step, *args, mesh=mesh, links=f"{SLOW},{FAST}", cache_dir=cache, audit=False)
    assert other.evidence is not None
    assert other.evidence.taken_over > 0
    assert other.evidence.ran > 0
    assert plan.evidence is not None
    assert other.evidence.loaded == 0
    with Store.open(cache) as store:
        rows = {
            (one.environment.partition(" ")[0], one.name): Measurement.from_json(one.document)
            for one in store.entries()
        }
    names = {shape: {name for where, name in rows if where == shape} for shape in ("4", "2x2")}
    shared = 0
    for name in names["4"]:
        head, _, splits = name.partition(": ")
        twice = f"{head}: {', '.join(f'{one}+{one}' for one in splits.split(', '))}"
        if twice in names["2x2"] and rows["2x2", twice].runs_s == rows["4", name].runs_s:
            shared += 1
            moved = []
            for found in (rows["4", name], rows["2x2", twice]):
                assert found.shares is not None
                assert found.shares.schedule is not None
                moved.append({t.axes for t, _ in found.shares.schedule.transfers()})
            assert moved == [{("x",)}, {("x", "y")}], name
    assert shared > 0


@pytest.mark.usefixtures("plan")
def test_how_many_devices(cache: Path, tmp_path: Path) -> None:
    words = ["plan", TARGET, "--devices", f"2,{DEVICES}", "--links", FAST, "--audit", "1"]
    words += ["--cache-dir", str(cache), "--out", str(tmp_path / "plan.json"), "--json"]
    found = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    table = document["scaling"]
    assert document["programs"] == {
        name: sum(row["programs"][name] for row in table)
        for name in ("compiled", "ran", "taken_over", "loaded")
    }
    assert document["programs"]["ran"] > 0
    assert [(row["devices"], row["mesh"]) for row in table] == [(2, [2]), (DEVICES, [DEVICES])]
    assert table[0]["efficiency"] == 1
    assert table[1]["efficiency"] == pytest.approx(table[0]["time_s"] / table[1]["time_s"] / 2)
    assert {path.name for path in tmp_path.iterdir()} == {"plan-2.json", "plan-4.json", "plan.html"}
    assert "How many devices" in (tmp_path / "plan.html").read_text()


def test_what_a_mesh_that_is_not_there_needs() -> None:
    step, args = make_step()
    with pytest.raises(CfpError, match=r"needs `links`.*one for each of its axes, x"):
        cfp.plan(step, *args, mesh=absent())
    with pytest.raises(CfpError, match="`links` are for a mesh that is not there"):
        cfp.plan(step, *args, mesh=jax.make_mesh((DEVICES,), ("x",)), links=FAST)
    with pytest.raises(CfpError, match=r"`cfp\.jit` runs the step, and `mesh` has no devices"):
        cfp.jit(step, mesh=absent())  # type: ignore[arg-type]
    with pytest.raises(CfpError, match="There is no link `h200_nvlnk`; did you mean"):
        cfp.plan(step, *args, mesh=absent(), links="h200_nvlnk")
