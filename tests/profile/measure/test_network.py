"""Which network it is: the same times mean the same network, others a new one."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from cfp.errors import CfpError
from cfp.profile.measure import network
from cfp.profile.measure.network import find_network
from cfp.profile.measure.store import Store, StoreWarning
from cfp.profile.programs.machine import Machine
from cfp.profile.runners.runner import RunnerLost
from tests.profile.fake_runner import Clock, FakeRunner

MACHINE = replace(
    Machine("cpu", "cpu", "fake", (2, 2), (0, 0, 1, 1), "0", "0", (), ()), hosts=(0, 0, 1, 1)
)


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("x", "y"))


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """What all-reduces take, by size; only axis x leaves a process."""
    times = {256: 0.001, 2**18: 0.050}
    monkeypatch.setattr(network, "_time", lambda runner, mesh, axis, size: times[size])
    monkeypatch.setattr(network, "_leaves", lambda mesh, axis: axis == "x")
    return times


def find(store: Store, mesh: Mesh, machine: Machine = MACHINE, budget_s: float = math.inf) -> str:
    runner = FakeRunner(Clock(), ends=time.monotonic() + budget_s)
    return find_network(runner, store, machine, mesh)


def test_a_network_is_known_again(tmp_path: Path, mesh: Mesh, times: dict[int, float]) -> None:
    with Store.open(tmp_path) as store:
        first = find(store, mesh)
        times.update({256: 0.004, 2**18: 0.080})  # a busy machine
        assert find(store, mesh) == first
        times[2**18] = 0.5
        slow = find(store, mesh)
        assert slow != first
        times[2**18] = 0.055
        assert find(store, mesh) == first
        times[2**18] = 0.45
        assert find(store, mesh) == slow


@pytest.mark.parametrize("busy", [1, 2])
def test_a_busy_machine_does_not_make_a_new_network(
    tmp_path: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    """The first time, or the next: so many times everything takes ten times as long."""
    slow = iter([10.0] * 2 * busy + [1.0] * 2 * network.TRIES + [10.0] * 2 * busy)
    monkeypatch.setattr(network, "_leaves", lambda mesh, axis: axis == "x")
    monkeypatch.setattr(network, "_time", lambda *given: 1e-3 * next(slow, 1.0))
    with Store.open(tmp_path) as store:
        assert len({find(store, mesh) for _ in range(4)}) == 1


@pytest.mark.parametrize("networks", [None, [{"name": 1}], [{"name": "a", "times_s": "b"}]])
def test_networks_that_someone_else_wrote(
    tmp_path: Path, mesh: Mesh, times: dict[int, float], networks: object
) -> None:
    with Store.open(tmp_path) as store:
        first = find(store, mesh)
        (record,) = store.entries()
        store.put(replace(record, document={"networks": networks}))
        with pytest.warns(StoreWarning, match=r"1 measurement is ignored in .* \(networks: "):
            assert find(store, mesh) == first
        short = {"networks": [{"name": "short", "times_s": [0.001]}]}
        store.put(replace(record, document=short))
        assert find(store, mesh) == first


def test_networks_are_kept_by_machine(tmp_path: Path, mesh: Mesh, times: dict[int, float]) -> None:
    with Store.open(tmp_path) as store:
        first = find(store, mesh)
        assert find(store, mesh, replace(MACHINE, hosts=(0, 0, 0, 0))) != first


@pytest.mark.usefixtures("times")
def test_a_network_that_does_not_work(
    tmp_path: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*given: object) -> float:
        raise RunnerLost("process 1 on boxb: no answer in 120 s", ())

    monkeypatch.setattr(network, "_time", lose)
    said = "cannot talk to each other: process 1 on boxb"
    with Store.open(tmp_path) as store:
        with pytest.raises(CfpError, match=said):
            find(store, mesh)
        with pytest.raises(CfpError, match=r"budget ended before the network .* raise it"):
            find(store, mesh, budget_s=0.0)


@pytest.mark.usefixtures("times")
def test_one_process_has_no_network(
    tmp_path: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_leaves", lambda mesh, axis: False)
    with Store.open(tmp_path) as store:
        assert find(store, mesh) == ""
        assert not list(store.entries())


@pytest.mark.parametrize(
    ("shape", "hosts", "said"),
    [
        ((8,), (0, 0, 0, 0, 1, 1, 1, 1), "x within and across hosts"),
        ((2, 4), (0, 0, 0, 0, 1, 1, 1, 1), "x across hosts, y within a host"),
        ((4, 2), (0, 0, 0, 0, 1, 1, 1, 1), "x within and across hosts, y within a host"),
    ],
)
def test_a_mesh_over_hosts_knows_its_levels(
    shape: tuple[int, ...], hosts: tuple[int, ...], said: str
) -> None:
    machine = replace(MACHINE, mesh_shape=shape, hosts=hosts)
    assert machine.levels("xyz"[: len(shape)]) == [f"The mesh is over 2 hosts: {said}."]


def test_levels_are_in_the_key() -> None:
    """What was measured on one host is not used for two."""
    apart = replace(MACHINE, hosts=(0, 0, 1, 1)).to_json()
    close = replace(MACHINE, hosts=(0, 0, 0, 0)).to_json()
    assert apart != close
    assert replace(MACHINE, network="a").to_json() != replace(MACHINE, network="b").to_json()
