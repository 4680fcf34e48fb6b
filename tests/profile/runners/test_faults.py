"""Crash, hang, no memory, SIGKILL of the worker and of the planner, two planners at once, a damaged
store: what is measured is what an undisturbed run measures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.store import Record, Store, StoreWarning
from cfp.profile.profile import Profile
from cfp.profile.runners.process import ProcessRunner
from tests.profile.fake_runner import Heard
from tests.profile.runners.faulty_worker import MEMORY, PLAN, RUNS
from tests.profile.steps import EFFORT, FAULTY, measured, mesh_of

ROOT = Path(__file__).parents[3]
ANCHOR = "segment 0: batch, batch"
Names = dict[str, str]  # key -> name, or name -> what happens to it


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of a test is not that of others; what killed planners leave behind goes with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def records(folder: Path) -> dict[str, Record]:
    with warnings.catch_warnings(), Store.open(folder) as store:
        return {record.key: record for record in store.entries()}


def names(folder: Path) -> Names:
    return {key: record.name for key, record in records(folder).items()}


def failures(folder: Path) -> dict[str, str]:
    """Name -> reason."""
    found = {record.name: record.document["failed"] for record in records(folder).values()}
    return {name: reason for name, reason in found.items() if reason is not None}


@contextmanager
def worker(**settings: float) -> Iterator[ProcessRunner]:
    with ProcessRunner(mesh_of(2), compile_threads=1, command=FAULTY, **settings) as runner:
        yield runner


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile]:
    folder = tmp_path_factory.mktemp("reference")
    heard = Heard()
    with worker() as runner:
        profile = measured(runner, folder, progress=heard)
    assert heard.lost_for == []
    return folder, profile


@pytest.fixture(scope="module")
def reference(undisturbed: tuple[Path, Profile]) -> Names:
    """What an undisturbed run measures."""
    folder, profile = undisturbed
    found = names(folder)
    assert profile.complete
    assert len(found) == 2 + 9
    assert failures(folder) == {}
    assert profile.segments[0].ways == profile.segments[0].kind.space == 9
    return found


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Names], None]:
    """faults({name of a program: what happens to it})."""

    def plan(faults: Names) -> None:
        monkeypatch.setenv(PLAN, json.dumps(faults))

    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv(MEMORY, str(memory))
    return plan


def run_whole(profile: Profile, folder: Path) -> None:
    """Each measured program is measured in full, whatever came between."""
    for record in records(folder).values():
        found = Measurement.from_json(record.document)
        assert found.failed is not None or len(found.runs_s) == EFFORT.repeats
    assert profile.complete


@pytest.mark.parametrize(
    "plan",
    [
        {
            "segment 0: batch, output features": "once:crash",
            "segment 0: output features, output features": "once:hang",
            "segment 0: input features, batch": "once:crash@compile",
        },
        {ANCHOR: "once:kill", "idle: 2 arguments": "once:exit@compile"},
    ],
    ids=["options", "anchor and overhead"],
)
def test_what_happens_once_leaves_no_trace(
    tmp_path: Path, reference: Names, faults: Callable[[Names], None], plan: Names
) -> None:
    faults(plan)
    heard = Heard()
    with worker() as runner:
        profile = measured(runner, tmp_path, progress=heard)
    assert len(heard.lost_for) == len(plan)
    assert names(tmp_path) == reference
    assert failures(tmp_path) == {}
    run_whole(profile, tmp_path)
    assert profile.base_s > 0


def test_what_happens_always_is_recorded_with_its_reason(
    tmp_path: Path, reference: Names, faults: Callable[[Names], None]
) -> None:
    bad = {
        "segment 0: batch, output features": "crash",
        "segment 0: batch, input features": "hang",
        "segment 0: output features, batch": "oom",
    }
    killed = "segment 0: output features, output features"
    faults({**bad, killed: "kill"})
    with worker() as runner:
        profile = measured(runner, tmp_path)
    assert {*names(tmp_path).values()} == {*reference.values()} - {killed}
    found = failures(tmp_path)
    assert found.keys() == bad.keys()
    assert "Check failed: ok() on purpose" in found["segment 0: batch, output features"]
    assert found["segment 0: batch, input features"] == f"no answer in {EFFORT.hang_s:g} s"
    assert found["segment 0: output features, batch"].startswith("out of memory: allocating ")
    run_whole(profile, tmp_path)
    (segment,) = profile.segments
    shown = {segment.kind.show(option): reason for option, reason in segment.failed.items()}
    assert "the next run tries it again" in shown.pop(killed.removeprefix("segment 0: "))
    assert shown == {name.removeprefix("segment 0: "): found[name] for name in bad}
    assert len(segment.costs) == 5
    assert not segment.costs.keys() & segment.failed.keys()

    faults({})
    heard = Heard()
    with worker() as runner:
        again = measured(runner, tmp_path, progress=heard)
    assert again.compiled == 2  # what was killed from outside, and the anchor; not what crashed
    assert names(tmp_path) == reference
    again_shown = {segment.kind.show(o): why for o, why in again.segments[0].failed.items()}
    assert again_shown == shown


def test_out_of_memory_costs_no_worker(
    tmp_path: Path, reference: Names, faults: Callable[[Names], None]
) -> None:
    """It costs none even where it is the anchor that has no memory."""
    bad = {ANCHOR: "oom", "segment 0: output features, batch": "oom@compile"}
    faults(bad)
    heard = Heard()
    with worker() as runner:
        profile = measured(runner, tmp_path, progress=heard)
    assert heard.lost_for == []
    assert names(tmp_path) == reference
    found = failures(tmp_path)
    assert found.keys() == bad.keys()
    assert all("out of memory" in reason for reason in found.values())
    run_whole(profile, tmp_path)


class Meddler(Heard):
    """Does something once, when so many programs are measured."""

    def __init__(self, after: int, what: Callable[[], None]) -> None:
        super().__init__()
        self.after = after
        self.what = what

    def running(self, names: object) -> None:
        if len(self.measurements) >= self.after:
            self.after = sys.maxsize
            self.what()


def test_the_worker_is_killed_from_outside(tmp_path: Path, reference: Names) -> None:
    with worker() as runner:

        def kill() -> None:
            assert runner._worker is not None
            os.kill(runner._worker._process.pid, signal.SIGKILL)

        heard = Meddler(4, kill)
        profile = measured(runner, tmp_path, progress=heard)
    assert len(heard.lost_for) == 1
    assert names(tmp_path) == reference
    assert failures(tmp_path) == {}
    run_whole(profile, tmp_path)
    assert profile.compiled <= len(reference) + 1 + EFFORT.wave + 1  # the anchor, a wave, it again


def test_the_database_is_truncated_meanwhile(tmp_path: Path, reference: Names) -> None:
    path = tmp_path / "measurements.sqlite"

    def truncate() -> None:
        os.truncate(path, path.stat().st_size // 3)

    with worker() as runner, pytest.warns(StoreWarning, match="damaged-1"):
        profile = measured(runner, tmp_path, progress=Meddler(6, truncate))
    assert names(tmp_path) == reference
    assert failures(tmp_path) == {}
    run_whole(profile, tmp_path)
    assert profile.compiled <= len(reference) + 1  # nothing was measured again
    assert (tmp_path / "measurements.sqlite.damaged-1").exists()


def planner(folder: Path, runs: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.profile.steps", str(folder)],
        cwd=ROOT,
        env={**os.environ, RUNS: str(runs)},
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("after", [2, 5])
def test_the_planner_is_killed(tmp_path: Path, reference: Names, after: int) -> None:
    """What it had written is there; what it had begun and the next run does again is a wave."""
    runs = tmp_path / "runs"
    give_up = time.monotonic() + 60
    with planner(tmp_path, runs) as killed:
        while len(records(tmp_path)) < after:
            assert killed.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.01)
        killed.kill()
    kept = records(tmp_path)
    assert len(kept) >= after
    assert len(kept) < len(reference)
    begun = {*runs.read_text().splitlines()}
    assert len(begun - {record.name for record in kept.values()}) <= EFFORT.wave

    with worker() as runner:
        profile = measured(runner, tmp_path)
    assert names(tmp_path) == reference
    assert failures(tmp_path) == {}
    run_whole(profile, tmp_path)
    now = records(tmp_path)
    assert {key: now[key] for key in kept} == kept  # made_at too: none was measured again
    assert profile.loaded == len(kept)
    assert profile.compiled <= len(reference) - len(kept) + 1  # the anchor


def test_two_planners_at_once(tmp_path: Path, reference: Names) -> None:
    runs = tmp_path / "runs"
    heard = Heard()
    with planner(tmp_path, runs) as other:
        with worker() as runner:
            profile = measured(runner, tmp_path, progress=heard)
        assert other.wait(60) == 0
    assert names(tmp_path) == reference
    assert failures(tmp_path) == {}
    run_whole(profile, tmp_path)
    mine = [found.name for found in heard.measurements]
    theirs = {*runs.read_text().splitlines()} if runs.exists() else set()
    assert len(mine) == len({*mine})
    assert theirs.intersection(mine) <= {ANCHOR}  # each was measured by one of them
    assert theirs.union(mine) == {*reference.values()}


def test_the_second_run_needs_no_worker(undisturbed: tuple[Path, Profile]) -> None:
    folder, first = undisturbed
    start = time.monotonic()
    with worker() as runner:
        second = measured(runner, folder)
        assert runner._worker is None  # not even started
    assert time.monotonic() - start < 5
    assert (second.compiled, second.loaded) == (0, 11)
    assert second.segments[0].costs == first.segments[0].costs
    assert (second.base_s, second.each_s) == (first.base_s, first.each_s)
