"""Calibrating: a network whose times are known is found again, and what was measured is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from cfp.calibration import calibrate as calibrate_mesh
from cfp.calibration import probe as probe_module
from cfp.calibration.calibrate import (
    FIRST_BYTES,
    LARGEST_CPU_BYTES,
    LONG_S,
    SECOND_BYTES,
    TIMES_LARGER,
    _measure,
    left_out,
    level,
)
from cfp.calibration.probe import Probe
from cfp.errors import CfpError
from cfp.links import Curve, Link
from cfp.links.link import COLLECTIVES
from tests.profile.fake_runner import MACHINE, Call, Clock, FakeRunner, clock, new_campaign

__all__ = ["clock"]
SHARED = 0.5  # of a run, by the fake runner, is communication
SIZES = [FIRST_BYTES * TIMES_LARGER**i for i in range(8)]


def true_s(axis: str, kind: str, size_bytes: int) -> float:
    """Returns what a collective takes: x is a slow network, y a fast one, both together slow."""
    latency_s, bytes_per_s = {"x": (1e-3, 1e7), "y": (1e-5, 1e10), "x+y": (2e-3, 1e7)}[axis]
    return (1 + COLLECTIVES.index(kind)) * (latency_s + size_bytes / bytes_per_s)


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("x", "y"))


@pytest.fixture
def runner(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    monkeypatch.setattr(probe_module, "export", lambda jitted, inputs: b"")  # nothing is run
    groups = {("x",): 2, ("y",): 2, ("x", "y"): 4}
    probes = [
        Probe(kind, axes, n, size)
        for kind in COLLECTIVES
        for axes, n in groups.items()
        for size in SIZES
    ]
    times = {
        probe.show(): probe.chain * true_s(probe.link, probe.kind, probe.size_bytes) / SHARED
        for probe in probes
    }
    return FakeRunner(clock, {"idle": 0.0, **times})


def measure(
    runner: FakeRunner,
    folder: Path,
    mesh: Mesh,
    budget_s: float = math.inf,
    keep: Callable[[tuple[Link, ...]], None] = lambda links: None,
) -> tuple[Link, ...]:
    campaign = new_campaign(runner, folder, budget_s=budget_s)
    return _measure(campaign, mesh, None, keep, LARGEST_CPU_BYTES)


def test_a_known_network_is_found_again(runner: FakeRunner, tmp_path: Path, mesh: Mesh) -> None:
    links = measure(runner, tmp_path, mesh)
    assert [(link.name, link.scope, link.device) for link in links] == [
        ("x", "node", "cpu"),
        ("y", "node", "cpu"),
        ("x+y", "node", "cpu"),
    ]
    for link in links:
        assert link.source.startswith("measured by cfp ")
        assert link.error is not None
        assert link.error.worst == pytest.approx(0, abs=1e-6)  # straight lines
        for kind in COLLECTIVES:
            ((group, curve),) = link.tables[kind].items()
            for size in curve.bytes:
                found_s = link.time_s(kind, group, size)
                assert found_s == pytest.approx(true_s(link.name, kind, size))
            largest_s = curve.times_s[-1]
            assert curve.bytes[-1] == LARGEST_CPU_BYTES or TIMES_LARGER * largest_s > LONG_S
            assert largest_s < LONG_S
    slow, fast = (link.tables["all-reduce"][2].bytes[-1] for link in links[:2])
    assert slow < fast == LARGEST_CPU_BYTES


def test_an_axis_over_several_hosts_is_between_machines(
    runner: FakeRunner, tmp_path: Path, mesh: Mesh
) -> None:
    campaign = new_campaign(runner, tmp_path)
    campaign.machine = replace(MACHINE, mesh_shape=(2, 2), hosts=(0, 0, 1, 1))
    links = _measure(campaign, mesh, None, lambda links: None, SECOND_BYTES)
    assert [(link.name, link.scope) for link in links] == [
        ("x", "network"),
        ("y", "node"),
        ("x+y", "network"),
    ]


def test_all_programs_of_a_size_run_in_turn(runner: FakeRunner, tmp_path: Path, mesh: Mesh) -> None:
    measure(runner, tmp_path, mesh)
    names = [runner.names[key] for key in runner.ran()]
    first = [name for name in names if name.endswith(f" {FIRST_BYTES} bytes")]
    begins = names.index(first[0])
    assert names[begins : begins + len(first)] == first
    for start in range(0, 45, 15):
        assert len({*first[start : start + 15]}) == 15


def test_a_budget_ends_with_what_was_measured(
    runner: FakeRunner, tmp_path: Path, mesh: Mesh
) -> None:
    kept: list[tuple[Link, ...]] = []
    links = measure(runner, tmp_path, mesh, budget_s=60.0, keep=kept.append)
    sizes = links[0].tables["all-reduce"][2].bytes
    assert FIRST_BYTES * TIMES_LARGER <= sizes[-1] < 2**20
    assert kept[-1] == links
    assert len(kept) == len(sizes) - 1  # one size is no link
    with pytest.raises(CfpError, match=r"The budget ended before 2 sizes .* raise it\."):
        measure(runner, tmp_path / "again", mesh, budget_s=0.1)


def test_who_interrupts_keeps_what_was_measured(
    runner: FakeRunner, tmp_path: Path, mesh: Mesh
) -> None:
    def presses(call: Call, calls: Sequence[Call]) -> str | None:
        if call[0] == "run" and runner.names[call[1][0]].endswith(f" {SIZES[3]} bytes"):
            raise KeyboardInterrupt
        return None

    runner.loses = presses
    kept: list[tuple[Link, ...]] = []
    with pytest.raises(KeyboardInterrupt):
        measure(runner, tmp_path, mesh, keep=kept.append)
    assert kept[-1][0].tables["all-gather"][2].bytes == tuple(SIZES[:3])


def test_a_collective_that_does_not_run_is_named(
    runner: FakeRunner, tmp_path: Path, mesh: Mesh
) -> None:
    class Refuses(dict[tuple[str, str], str]):
        def __contains__(self, key: object) -> bool:
            return isinstance(key, tuple) and "all-to-all along y" in runner.names.get(key[0], "")

        def __missing__(self, key: tuple[str, str]) -> str:
            return "no such thing"

    runner.fails = Refuses()
    with pytest.raises(CfpError, match=r"does not run here: all-to-all along y: 1024 bytes: no"):
        measure(runner, tmp_path, mesh)


def test_two_sizes_are_the_fewest(mesh: Mesh) -> None:
    with pytest.raises(CfpError, match=r"The largest size is 4095 bytes, .* raise it\."):
        calibrate_mesh(mesh, largest_bytes=4095)


def test_one_device_has_no_links() -> None:
    with pytest.raises(CfpError, match=r"A mesh of one device has no links"):
        calibrate_mesh(Mesh(np.array(jax.devices("cpu")[:1]), ("x",)))


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=8))
def test_levelled_times_rise_and_stay_within_the_measured(times_s: list[float]) -> None:
    curve = level([(4**i, time_s) for i, time_s in enumerate(times_s)])
    assert all(a <= b for a, b in zip(curve.times_s, curve.times_s[1:], strict=False))
    assert min(times_s) * 0.999 <= curve.times_s[0]
    assert curve.times_s[-1] <= max(times_s) * 1.001
    if times_s == sorted(times_s):
        assert curve.times_s == pytest.approx(times_s)


def test_the_error_is_how_far_neighbours_are_from_a_size() -> None:
    assert [*left_out(Curve((1, 2, 3), (1.0, 4.0, 5.0)))] == pytest.approx([0.25])
    assert [*left_out(Curve((1, 2), (1.0, 4.0)))] == []
