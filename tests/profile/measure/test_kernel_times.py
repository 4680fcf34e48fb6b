"""Programs with the same kernels are run once, and each is replayed with its own collectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cfp.links import find_links
from cfp.links.kernels import Kernels
from cfp.links.schedule import Moment, Schedule, Transfer
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.measurement import Provenance
from cfp.profile.measure.store import Record, Store, StoreWarning
from cfp.profile.programs.machine import Machine
from tests.profile.fake_runner import (
    MACHINE,
    Clock,
    FakeRunner,
    clock,
    new_campaign,
    requests,
)

__all__ = ["clock"]  # a fixture

STANDING_IN = replace(MACHINE, processes=(), stand_ins=1)
MEBIBYTE = 2**20


def kernels(known_as: str, axis: str = "x", size_bytes: int = MEBIBYTE) -> Kernels:
    moves = Transfer("all-reduce", (axis,), size_bytes)
    return Kernels(known_as, Schedule((Moment(0.0, moves, wait=0),)))


def campaign(
    runner: FakeRunner, folder: Path, link: str = "h200_nvlink", machine: Machine = STANDING_IN
) -> Campaign:
    network = find_links(link, dict(zip("xy", machine.mesh_shape, strict=False)))
    return new_campaign(runner, folder, machine=machine, network=network)


def test_two_in_one_wave(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, {"a": 2.0}, kernels={key: kernels("same") for key in "ab"})
    found = campaign(runner, tmp_path)
    found.measure(requests("a", "b"))
    assert set(runner.ran()) == {"a"}
    assert (found.compiled, found.running.ran, found.running.taken_over) == (2, 1, 1)
    assert found.known["a"].time_s == found.known["b"].time_s > 2.0
    assert found.known["b"].provenance is Provenance.REPLAYED
    assert found.known["b"].name == "b"


def test_kernels_that_differ_are_run(clock: Clock, tmp_path: Path) -> None:
    told = {"a": kernels("one"), "b": kernels("two")}
    runner = FakeRunner(clock, {"a": 2.0, "b": 3.0}, kernels=told)
    found = campaign(runner, tmp_path)
    found.measure(requests("a", "b", "c"))  # nothing is told of the last one
    assert set(runner.ran()) == {"a", "b", "c"}
    assert found.running.taken_over == 0


def test_another_mesh_with_links_of_its_own(clock: Clock, tmp_path: Path) -> None:
    """The kernels are those that were measured, communication is that of the mesh, and what is
    stored does for any links."""
    first = campaign(FakeRunner(clock, {"a": 2.0}, kernels={"a": kernels("same")}), tmp_path)
    first.measure(requests("a"))
    runner = FakeRunner(clock, kernels={"b": kernels("same", "y")})
    mesh = replace(STANDING_IN, mesh_shape=(2, 4))
    second = campaign(runner, tmp_path, "h200_nvlink,l40s_pcie", mesh)
    second.measure(requests("b"))
    assert (runner.ran(), second.running.taken_over, second.loaded) == ([], 1, 0)
    own, other = second.known["b"], first.known["a"]
    assert own.shares is not None
    assert other.shares is not None
    assert own.shares.compute_s == other.shares.compute_s == 2.0
    slow = find_links("l40s_pcie", {"y": 4}).time_s("all-reduce", ("y",), MEBIBYTE)
    assert own.communication_s == pytest.approx(slow)
    assert own.communication_s != pytest.approx(other.communication_s)
    again = campaign(FakeRunner(clock), tmp_path, "l40s_pcie,h200_nvlink", mesh)
    again.measure(requests("b"))
    assert (again.loaded, again.running.taken_over) == (1, 0)


def test_another_compiler_measures_again(clock: Clock, tmp_path: Path) -> None:
    for key, version in (("a", "0.10"), ("b", "0.11")):
        runner = FakeRunner(clock, kernels={key: kernels("same")})
        newer = replace(STANDING_IN, jax=version)
        campaign(runner, tmp_path, machine=newer).measure(requests(key))
        assert set(runner.ran()) == {key}


def test_full_steps_run(clock: Clock, tmp_path: Path) -> None:
    """They are what predictions are checked with. Once is enough: the device's times do not drift
    with what runs beside them."""
    told = {key: kernels("same") for key in ("a", "step", "other")}
    campaign(FakeRunner(clock, kernels=told), tmp_path).measure(requests("a"))
    runner = FakeRunner(clock, kernels=told)
    found = campaign(runner, tmp_path, machine=replace(STANDING_IN, mesh_shape=(4,)))
    found.measure(requests("step"), together=True)
    found.measure(requests("step", "other"), together=True)
    assert set(runner.ran()) == {"step", "other"}
    assert runner.ran() == sorted(runner.ran(), reverse=True), "one after another"
    assert found.running.taken_over == 0


def test_one_that_fails_shows_nothing_of_the_other(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, kernels={key: kernels("same") for key in "ab"})
    runner.fails["a", "run"] = "out of memory"
    found = campaign(runner, tmp_path)
    found.measure(requests("a", "b"))
    assert found.known["a"].failed == "out of memory"
    assert found.known["b"].failed is None
    assert found.running.taken_over == 0


def test_what_does_not_fit_the_program_is_measured_again(clock: Clock, tmp_path: Path) -> None:
    """A row under the right name that another program's schedule is in."""
    told = {"a": kernels("same")}
    campaign(FakeRunner(clock, kernels=told), tmp_path).measure(requests("a"))
    runner = FakeRunner(clock, kernels={"b": kernels("same", size_bytes=1)})
    found = campaign(runner, tmp_path)
    with pytest.warns(StoreWarning, match=r"ignored .* \(b: the two schedules have other coll"):
        found.measure(requests("b"))
    assert set(runner.ran()) == {"b"}
    with Store.open(tmp_path) as store:
        rows: list[Record] = [*store.entries()]
    assert sorted(row.name for row in rows) == ["a", "b", "kernels: b"]
