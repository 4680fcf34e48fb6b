"""Real processes on loopback: `cfp launch` plans, trains as unsharded, and survives kill -9."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cfp.cli import cli
from cfp.profile.measure.full_step import ALONE
from cfp.profile.measure.store import Store

TARGET = "tests.cluster.small:make_step"
CFP = [sys.executable, "-m", "cfp"]
LAUNCH = [*CFP, "launch", "--processes", "2", "--", *CFP]
MESH = ["--mesh", "4", "--platform", "cpu"]
NOTICED_S = 60.0
LOOK_S = 0.05  # between looks at what others do: who looks all the time takes a core from them


def finish(
    command: list[str], timeout_s: float = 240, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CFP_")} | more
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


def alone(*words: str) -> str:
    """What a command prints that runs in this very process, which saves starting one."""
    ran = CliRunner().invoke(cli, words)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_two_processes_plan_and_train_as_one_does(tmp_path: Path) -> None:
    out, store = tmp_path / "plan.json", tmp_path / "store"
    where = ["--cache-dir", str(store), "--out", str(out)]
    for budget in ("6s", "10s", "20s", "40s"):  # a busy machine goes on with what was measured
        command = [*LAUNCH, "plan", TARGET, *MESH, "--beside", "data_parallel", *where]
        ran = finish([*command, "--budget", budget])
        if ran.returncode == 0:
            document = json.loads(out.read_text())
            confirmed = document["evidence"]["confirmed"][1:]
            ran_beside = {one["name"]: one["runs_s"] for one in confirmed}
            if ran_beside and all(ran_beside.values()):
                break
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("a plan for a mesh of x=4") == 1  # process 0 alone speaks
    assert document["environment"]["processes"] == 2
    assert {*ran_beside} == {"data_parallel", ALONE}
    assert all(ran_beside.values()), "process 0 ran the step alone while the other waited"
    with Store.open(store) as kept:
        places = {record.environment for record in kept.entries() if record.program != "networks"}
    assert all("2 processes on 1 host, network " in place for place in places)

    options = ["train", TARGET, "--steps", "4", "--platform", "cpu", "--json"]
    ran = finish([*LAUNCH, *options, "--plan", str(out)])
    assert ran.returncode == 0, ran.stderr
    unsharded = json.loads(alone(*options))["losses"]
    assert json.loads(ran.stdout)["losses"] == pytest.approx(unsharded, rel=1e-5)


def test_a_script_with_jit_measures_once(tmp_path: Path) -> None:
    """Process 0 finds the plan that it kept, and tells the others."""
    command = [sys.executable, "-m", "tests.cluster.jitted", str(tmp_path)]
    found = []
    for flags in ([], ["--stored"]):
        ran = finish([*CFP, "launch", "--processes", "2", "--", *command, *flags])
        assert ran.returncode == 0, ran.stderr
        found.append(json.loads(ran.stdout.splitlines()[-1]))  # Gloo talks before
    first, second = found
    assert second["plan"] == first["plan"]
    assert second["losses"] == pytest.approx(first["losses"], rel=1e-5)
    assert first["losses"][-1] < first["losses"][0]


def test_what_fails_on_one_host_has_failed_everywhere(tmp_path: Path) -> None:
    """Profiling goes on after that, with new workers in both processes."""
    faults = json.dumps(
        {"segment 0: batch, batch": "crash", "segment 0: output features, batch": "oom"}
    )
    command = [sys.executable, "-m", "tests.cluster.faulty", str(tmp_path), "1", faults]
    ran = finish([*CFP, "launch", "--processes", "2", "--", *command])
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    failed = sorted(found["failed"])
    assert re.search("process 1 on .*: out of memory", failed[0]), failed
    assert re.search("process 1 on .*: .*Check failed", failed[1]), failed
    assert found["ran"] > 2


@pytest.fixture
def going() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes started one by one, as on two hosts."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start_two(
    going: list[subprocess.Popen[str]], options: list[str], port: int, tmp_path: Path
) -> list[Path]:
    logs = [tmp_path / f"log{i}" for i in range(2)]
    for i, log in enumerate(logs):
        who = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id", str(i)]
        with log.open("w") as file:
            going.append(
                subprocess.Popen([*CFP, *options, *who], stdout=file, stderr=file, text=True)
            )
    return logs


def wait_for(log: Path, pattern: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(LOOK_S)


def test_sigterm_ends_all_of_them(tmp_path: Path) -> None:
    """JAX's runtime would keep it for itself, and a scheduler's patience is short."""
    store = str(tmp_path / "store")
    log = tmp_path / "log"
    with log.open("w") as file:
        launched = subprocess.Popen(
            [*LAUNCH, "profile", TARGET, *MESH, "--cache-dir", store], stdout=file, stderr=file
        )
    wait_for(log, r"\d+/\d+ programs")
    launched.terminate()
    assert launched.wait(20) == 128 + signal.SIGTERM


def measured(store: Path) -> int:
    """Programs in the store."""
    with Store.open(store) as kept:
        return sum(record.program != "networks" for record in kept.entries())


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_during_profiling(
    going: list[subprocess.Popen[str]], tmp_path: Path, free_port: int, victim: int
) -> None:
    store = tmp_path / "store"
    options = ["profile", TARGET, *MESH, "--cache-dir", str(store)]
    logs = start_two(going, options, free_port, tmp_path)
    wait_for(logs[0], r"\d+/\d+ programs")
    deadline = time.monotonic() + 120
    while not measured(store):
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
    going[victim].send_signal(signal.SIGKILL)
    other = 1 - victim
    assert going[other].wait(NOTICED_S) == 1
    line = logs[other].read_text().splitlines()[-1]
    assert re.search(rf"cfp: Lost process {victim} on \S+ while \w+ ", line), line
    assert "What was measured is kept" in line
    if victim:
        goes_on(options, store, tmp_path)


def goes_on(options: list[str], store: Path, folder: Path) -> None:
    """They go on with what is in the store when they are started again. Each time with a copy of
    it: on a busy machine a budget may be too short, or a network seem to be another one."""
    there = measured(store)
    for number, budget in enumerate(("6s", "20s", "40s", "40s")):
        copy = shutil.copytree(store, folder / f"copy{number}")
        more = ["--cache-dir", str(copy), "--budget", budget, "--json"]
        again = finish([*LAUNCH, *options, *more])
        if again.returncode == 0 and json.loads(again.stdout)["loaded"] >= there > 0:
            return
    pytest.fail(f"of {there} programs they did not load all: {again.stdout}{again.stderr}")


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_during_training(
    going: list[subprocess.Popen[str]], tmp_path: Path, free_port: int, victim: int
) -> None:
    plan = str(tmp_path / "plan.json")
    alone("template", "data_parallel", TARGET, *MESH, "--out", plan)
    options = ["train", TARGET, "--plan", plan, "--steps", "100000000"]
    logs = start_two(going, [*options, "--platform", "cpu"], free_port, tmp_path)
    wait_for(logs[0], r"step +\d+|\d+/100000000")
    going[victim].send_signal(signal.SIGKILL)
    other = 1 - victim
    assert going[other].wait(NOTICED_S) != 0
    assert re.search(
        rf"cfp: Lost process {victim} on \S+ while training step \d+: .* Start all processes again",
        logs[other].read_text(),
    ), logs[other].read_text()
