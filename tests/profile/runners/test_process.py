"""A worker may crash, hang, be killed or be left behind: the runner says so and goes on."""

import dataclasses
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

from cfp.errors import CfpError
from cfp.profile.runners.child import Worker
from cfp.profile.runners.in_process import InProcessRunner
from cfp.profile.runners.job import Compiled, Failed, Fill, Job
from cfp.profile.runners.messages import Drop
from cfp.profile.runners.process import ProcessRunner
from cfp.profile.runners.runner import RunnerLost
from tests.profile.runners.faulty_worker import MEMORY
from tests.profile.runners.test_session import compiled, make_job, mesh, seconds, step_job

__all__ = ["mesh"]  # the fixture

FAULTY = [sys.executable, str(Path(__file__).with_name("faulty_worker.py"))]


@pytest.fixture(scope="module")
def runner(mesh: Mesh) -> Iterator[ProcessRunner]:
    """One for all tests, as each makes it start again only if it loses its worker."""
    before = {*os.listdir("/proc/self/fd")}
    with ProcessRunner(mesh, compile_threads=2, command=FAULTY) as runner:
        yield runner
    runner.close()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def named(job: Job, name: str) -> Job:
    return dataclasses.replace(job, key=name, name=name)


def pid(runner: ProcessRunner) -> int:
    assert runner._worker is not None
    return runner._worker._process.pid


def gone(pid: int) -> bool:
    """Ended, though perhaps nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Any, timeout_s: float) -> bool:
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def test_like_in_process(mesh: Mesh, runner: ProcessRunner) -> None:
    jobs = [step_job(mesh, "step"), step_job(mesh, "same"), step_job(mesh, "big", 64)]
    bad = Job("bad", "bad", b"nonsense", ())
    answers = compiled(runner, *jobs, bad)
    with InProcessRunner(mesh, compile_threads=2) as other:
        expected = compiled(other, *jobs, bad)
    assert answers["bad"] == expected["bad"]
    for job in jobs:
        ours, theirs = answers[job.key], expected[job.key]
        assert isinstance(ours, Compiled)
        assert isinstance(theirs, Compiled)
        assert ours.memory == theirs.memory
    assert 0.0 in (seconds(answers["step"]), seconds(answers["same"]))
    for key in ["step", "same", "big"] * 5:
        time_s = runner.run(key, 10)
        assert isinstance(time_s, float)
        assert 0 < time_s < 10
    assert set(runner.time_shares(["step", "big"], 60)) == {"step", "big"}
    runner.drop(["step", "same", "big"])
    with pytest.raises(RuntimeError, match="KeyError: 'step'"):
        runner.run("step", 10)
    assert runner.finished(60) == []


@pytest.mark.parametrize(
    ("fault", "reason", "outside"),
    [
        (
            "crash",
            "the worker crashed: F0101 00:00:00 faulty.cc:1] Check failed: ok() on purpose",
            False,
        ),
        ("segv", "the worker was killed by signal 11 (SIGSEGV)", False),
        ("exit", "the worker ended with exit code 3", False),
        ("hang", "no answer in 0.5 s", False),
        ("kill", "the worker was killed by signal 9 (SIGKILL)", True),
        (
            "peer",
            "the worker crashed: F0101 00:00:00 client.h:80] Terminating process because",
            True,
        ),
    ],
)
def test_a_run_that_takes_the_worker_with_it(
    mesh: Mesh, runner: ProcessRunner, fault: str, reason: str, outside: bool
) -> None:
    compiled(runner, named(step_job(mesh, ""), fault))
    worker = pid(runner)
    with pytest.raises(RunnerLost) as lost:
        runner.run(fault, 0.5 if fault == "hang" else 30)
    assert lost.value.reason.startswith(reason)
    assert lost.value.during == (fault,)
    assert lost.value.outside == outside
    assert gone(worker)
    assert runner.finished(60) == []
    runner.drop([fault])


def test_the_next_worker_goes_on(
    mesh: Mesh, runner: ProcessRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY, str(tmp_path))
    runner.close()  # the next worker gets the new environment
    jobs = [named(step_job(mesh, ""), "once:crash@compile once:kill"), step_job(mesh, "good")]
    key = jobs[0].key
    with pytest.raises(RunnerLost, match="on purpose") as lost:
        compiled(runner, *jobs)
    assert key in lost.value.during
    compiled(runner, *jobs)
    with pytest.raises(RunnerLost, match="killed by signal 9"):
        runner.run(key, 30)
    compiled(runner, *jobs)
    assert isinstance(runner.run(key, 30), float)
    assert isinstance(runner.run("good", 30), float)


def test_only_those_whose_turn_has_come_are_blamed(mesh: Mesh) -> None:
    bad = named(step_job(mesh, ""), "crash@compile")
    with ProcessRunner(mesh, compile_threads=1, command=FAULTY) as runner:
        jobs = [step_job(mesh, f"good {i}", 8 * (i + 1)) for i in range(4)]
        with pytest.raises(RunnerLost) as lost:
            compiled(runner, *jobs[:2], bad, *jobs[2:])
        assert lost.value.during == (bad.key,)


def test_out_of_memory_keeps_the_worker(mesh: Mesh, runner: ProcessRunner) -> None:
    at_run, at_compile = (named(step_job(mesh, ""), name) for name in ("oom", "oom@compile"))
    answers = compiled(runner, at_run, at_compile, step_job(mesh, "good"))
    worker = pid(runner)
    for answer in (answers["oom@compile"], runner.run("oom", 30)):
        assert isinstance(answer, Failed)
        assert answer.reason.startswith("out of memory: allocating ")
    assert isinstance(runner.run("good", 30), float)
    assert pid(runner) == worker


def test_a_worker_that_is_starting_can_be_ended(mesh: Mesh) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    with ProcessRunner(mesh, command=sleeps) as runner:
        threading.Timer(0.3, runner.kill).start()
        start = time.monotonic()
        with pytest.raises(CfpError, match="could not start: the worker was killed by signal 9"):
            runner.start()
        assert time.monotonic() - start < 10


def test_a_worker_that_does_not_start_within_the_budget(mesh: Mesh) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    with ProcessRunner(mesh, command=sleeps) as runner:
        runner.ends = time.monotonic() + 0.3
        with pytest.raises(RunnerLost, match="did not start before the budget ended") as lost:
            runner.submit(step_job(mesh, "good"))
        assert (lost.value.hung, lost.value.outside) == (True, True)
        assert time.monotonic() - runner.ends < 10


@pytest.mark.parametrize(("left_s", "waits_s"), [(-5.0, 1), (12.5, 12), (math.inf, 30)])
def test_a_worker_that_stopped_reading_is_waited_for_until_the_budget_ends(
    left_s: float, waits_s: int
) -> None:
    worker = Worker([sys.executable, "-c", "import time; time.sleep(60)"], False)
    try:
        worker.send(Drop(("a",)), time.monotonic() + left_s)
        found = worker._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
        assert struct.unpack("ll", found)[0] in (waits_s, waits_s - 1)
        if left_s < 0:
            with pytest.raises(OSError, match="temporarily unavailable"):
                worker.send(Drop(("a" * 2**24,)), time.monotonic() + left_s)
    finally:
        worker.kill()


def test_killed_from_outside(mesh: Mesh, runner: ProcessRunner) -> None:
    compiled(runner, step_job(mesh, "good"))
    worker = pid(runner)
    os.kill(worker, signal.SIGKILL)
    assert until(lambda: gone(worker), 5)
    with pytest.raises(RunnerLost) as lost:
        runner.run("good", 30)
    assert lost.value.reason == "the worker was killed by signal 9 (SIGKILL)"


def test_compiling_too_long_or_interrupted(mesh: Mesh) -> None:
    with ProcessRunner(mesh, compile_threads=1, command=FAULTY, compile_timeout_s=1) as runner:
        runner.submit(named(step_job(mesh, ""), "hang@compile"))
        runner.submit(step_job(mesh, "good"))
        assert runner.finished(0.1) == []
        with pytest.raises(RunnerLost) as lost:
            runner.finished(30)
        assert (lost.value.reason, lost.value.during) == ("no answer in 1 s", ("hang@compile",))

        runner.submit(named(step_job(mesh, ""), "hang@compile"))
        with pytest.raises(RunnerLost, match="no answer in 1 s"):
            until(lambda: bool(runner.finished(0.0)), 30)  # never waits, as a process of several

        compiled(runner, named(step_job(mesh, ""), "hang"))
        worker, start = pid(runner), time.monotonic()
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            runner.run("hang", 60)
        timer.join()
        runner.close()
        assert time.monotonic() - start < 2
        assert gone(worker)
        with pytest.raises(RunnerLost, match="interrupt"):
            runner.finished(60)
        assert runner.finished(60) == []


def test_the_worker_has_our_settings(mesh: Mesh) -> None:
    with jax.enable_x64(True):
        fill = Fill((8,), "float64", "normal")
        job = make_job(mesh, "double", lambda x: (x * 2,), ((fill, ("x",)),), (("x",),))
        with ProcessRunner(mesh) as runner:
            answer = compiled(runner, job)["double"]
            assert isinstance(answer, Compiled)
            assert answer.memory.output_bytes >= 8 * 8 // 2
            assert isinstance(runner.run("double", 30), float)


def test_a_worker_that_cannot_start(mesh: Mesh) -> None:
    command = [sys.executable, "-c", "raise OSError('the devices are taken')"]
    with (
        ProcessRunner(mesh, command=command) as runner,
        pytest.raises(CfpError, match=r"could not start.*OSError: the devices are taken"),
    ):
        runner.submit(step_job(mesh, "good"))


SAYS = """
import os, struct, sys, time
fd = int(sys.argv[1])
os.write(fd, {said!r})
time.sleep(60)
"""


@pytest.mark.parametrize(
    "said", [b"\xff" * 8, b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x0a\x80\x04cposix\nsys"]
)
def test_a_worker_that_talks_nonsense(mesh: Mesh, said: bytes) -> None:
    command = [sys.executable, "-c", SAYS.format(said=said)]
    with (
        ProcessRunner(mesh, command=command) as runner,
        pytest.raises(CfpError, match=r"could not start: What came is no message: .*"),
    ):
        runner.start()


def test_the_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """It ends with its parent even while it hangs."""
    script = f"""
import sys, jax, numpy as np
from jax.sharding import Mesh
from cfp.profile.runners.process import ProcessRunner
from tests.profile.runners.test_session import compiled, step_job
from tests.profile.runners.test_process import named, pid
mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
runner = ProcessRunner(mesh, command={FAULTY!r})
compiled(runner, named(step_job(mesh, ""), "hang"))
print(pid(runner), flush=True)
runner.run("hang", 600)
"""
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # killed, it leaves its worker's directory
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        time.sleep(0.3)
        assert not gone(worker)
        parent.kill()
    assert until(lambda: gone(worker), 5)
