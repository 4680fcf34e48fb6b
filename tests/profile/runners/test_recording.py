"""A recording of a real GPU: `tests/links/record_loop_h200.py` made it on an H200."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest
from jax.profiler import ProfileData

from cfp.links.kernels import fingerprint
from cfp.links.replay import replay
from cfp.links.schedule import Schedule, read_schedule
from cfp.profile.runners.stand_in_worker import Recorded, gpu_kernels, recorded_runs
from tests.links.test_replay import FREE

FOLDER = Path(__file__).parents[2] / "links"
RUN_S = 5.8e-3  # what a run took by the host's clock, of five
ASYNCHRONOUS = 0.1  # of the time: copies in loops that XLA starts beside kernels, of which the
# module's text has no name that the recording knows


@pytest.fixture(scope="module")
def text() -> str:
    return gzip.decompress((FOLDER / "loop_h200.hlo.gz").read_bytes()).decode()


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    found = gzip.decompress((FOLDER / "loop_h200.xplane.pb.gz").read_bytes())
    data = ProfileData.from_serialized_xspace(found)
    return recorded_runs(data, {"cfp:0": "step", "cfp:1": "step"}, gpu_kernels)["step"]


@pytest.fixture(scope="module")
def kernels_s(recorded: Recorded) -> Mapping[str, float]:
    return recorded.kernels_s


@pytest.fixture(scope="module")
def schedule(text: str, kernels_s: Mapping[str, float]) -> Schedule:
    return read_schedule(text, {"x": 8}, kernels_s)


def test_kernels_fill_most_of_a_run(kernels_s: Mapping[str, float]) -> None:
    assert 0.8 * RUN_S < sum(kernels_s.values()) < RUN_S
    assert not any(name.startswith("all-reduce") for name in kernels_s)


def test_kernels_take_what_the_host_does_not(recorded: Recorded) -> None:
    """Without what starting the program takes, a run is its kernels."""
    busy_s = sum(recorded.kernels_s.values())
    assert busy_s == pytest.approx(RUN_S - recorded.host_s, rel=0.02)


def test_kernels_have_their_places(schedule: Schedule, kernels_s: Mapping[str, float]) -> None:
    assert 0 <= schedule.unplaced_s < ASYNCHRONOUS * sum(kernels_s.values())
    assert replay(schedule, FREE).time_s == pytest.approx(sum(kernels_s.values()))


def test_loops_and_collectives(schedule: Schedule) -> None:
    """Four layers in either pass, each with a sum of activations or cotangents; and those of the
    two layers outside."""
    loops = [moment.loop for moment in schedule.moments if moment.loop is not None]
    assert [loop.times for loop in loops] == [4, 4]
    sums = [(moved.kind, moved.axes, moved.bytes) for moved, _ in schedule.transfers()]
    assert set(sums) == {("all-reduce", ("x",), 8192 * 4096 * 2)}
    assert sum(times for _, times in schedule.transfers()) == 4 + 4 + 3


def test_names_do_not_tell_programs_apart(text: str) -> None:
    assert fingerprint(text) == fingerprint(text.replace("loop_add_fusion", "loop_sum_fusion"))
    assert fingerprint(text) != fingerprint(text.replace("8192,4096", "8192,2048"))
