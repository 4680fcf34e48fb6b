"""`cfp profile`: one JSON document, progress on stderr, stopped and gone on with at any moment; and
what of a changed step is measured anew."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest
from rich.console import Console

from cfp.cli import main
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.store import Store
from cfp.report import TerminalProgress
from cfp.report import progress as progress_module
from tests.profile.fake_runner import Clock, FakeRunner, Heard, clock
from tests.profile.runners.test_process import gone, until
from tests.profile.steps import analysed, measured

__all__ = ["clock"]

PROJECT = """
from tests.profile.steps import step
import jax.numpy as jnp

def make(layers, width=16):
    return step, ([jnp.ones((width, width))] * layers, jnp.ones((16, width)))

def make_step():
    return make(4)

def deeper():
    return make(7)

def wider():
    return make(4, 32)

def varied():
    widths = [16, 32, 48, 64, 80]
    return step, ([jnp.ones(pair) for pair in zip(widths, widths[1:])], jnp.ones((16, 16)))
"""
ROOT = Path(__file__).parents[2]
TITLE = re.compile(
    r"^Segment (\d) \(layer\), (once|\d times) a step: (\d) of 3 ways to split", re.M
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "project.py").write_text(PROJECT)
    return folder


def start(project: Path, target: str, *options: object) -> subprocess.Popen[str]:
    """`cfp profile`, which makes its own devices."""
    flags = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=8", "")
    arguments = ["profile", target, "--platform", "cpu", *map(str, options)]
    return subprocess.Popen(
        [sys.executable, "-c", "from cfp.cli import main; main()", *arguments],
        cwd=project,
        env={
            **os.environ,
            "XLA_FLAGS": flags,
            "COLUMNS": "200",
            "TMPDIR": str(project),
            "PYTHONPATH": os.pathsep.join([str(project), str(ROOT)]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(project: Path, target: str, *options: object) -> tuple[str, str]:
    with start(project, target, *options) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    """Removes what differs between two runs on the same measurements."""
    left_out = ("compiled", "compile_s", "loaded", "seconds")
    return {name: value for name, value in document.items() if name not in left_out}


@pytest.fixture(scope="module")
def profiled(project: Path) -> tuple[dict[str, Any], str]:
    out, err = run(
        project, "project:make_step", "--mesh", 2, "--cache-dir", project / "cache", "--json"
    )
    return json.loads(out), err


def test_one_document_on_stdout_and_progress_on_stderr(
    project: Path, profiled: tuple[dict[str, Any], str]
) -> None:
    document, err = profiled
    assert document["complete"]
    assert document["missing"] == []
    assert document["machine"]["mesh_shape"] == [2]
    assert [segment["times"] for segment in document["segments"]] == [1, 2, 1]
    for segment in document["segments"]:
        assert segment["finished"]
        combos = {tuple(option["combo"]) for option in segment["options"]}
        assert len(combos) == segment["space"] == 3
        assert {option["state"] for option in segment["options"]} <= {"block", "zero1", "fsdp"}
        assert segment["failed"] == []
        times = [option["time_s"] for option in segment["options"]]
        assert times == sorted(times)
    assert all(
        pair["time_s"] is not None for b in document["boundaries"] for pair in b["reshardings"]
    )
    assert document["start_s"] > 0
    with Store.open(project / "cache") as store:
        assert document["compiled"] >= len([*store.entries()]) >= 11
    assert re.search(r"^\d+/\d+ programs.*: (compiling|running) ", err, re.M)
    assert "\x1b" not in err


def test_the_second_time_nothing_is_compiled(
    project: Path, profiled: tuple[dict[str, Any], str]
) -> None:
    options = ("--mesh", 2, "--cache-dir", project / "cache")
    out, _ = run(project, "project:make_step", *options, "--json")
    document = json.loads(out)
    with Store.open(project / "cache") as store:
        assert (document["compiled"], document["loaded"]) == (0, len([*store.entries()]))
    assert document["compile_s"] == 0
    assert document["seconds"] < 5
    assert timeless(document) == timeless(profiled[0])
    out, _ = run(project, "project:deeper", *options)
    assert TITLE.findall(out) == [("0", "once", "3"), ("1", "5 times", "3"), ("2", "once", "3")]
    assert "batch" in out
    assert "Reshardings between segments" in out
    assert "\n0 programs compiled (0 us) and " in out


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--budget", "nonsense"), 2, "'nonsense' is not a length of time"),
        (("--budget", "0s"), None, ""),
        (("--memory-limit", "much"), 2, "'much'"),
        (("--mesh", "0"), 2, "'0' is not a mesh"),
        (("--mesh", "3"), 1, "3"),
        (("--cache-dir", __file__), 1, "give another folder with cache_dir / --cache-dir"),
        (("--top", "0"), 2, "--top"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, tuple) else None,
)
def test_bad_input(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    code: int | None,
    said: str,
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    begin = ["profile", "project:make_step", "--mesh", "2", "--cache-dir", str(project / "bad")]
    with pytest.raises(SystemExit) as stopped:
        main([*begin, *options])
    captured = capsys.readouterr()
    assert stopped.value.code in ((1, 2) if code is None else (code,)), captured.err
    assert captured.out == ""
    assert said in captured.err
    last = captured.err.splitlines()[-1]
    assert last.startswith(("cfp: ", "Error: "))
    assert last.endswith(".")
    assert "Traceback" not in captured.err


def test_a_budget_that_is_too_small(project: Path, tmp_path: Path) -> None:
    """The budget is less than any machine takes to compile one program."""
    begin = time.monotonic()
    budget = ("--budget", "0.1s")
    out, _ = run(project, "project:wider", "--mesh", 2, *budget, "--cache-dir", tmp_path)
    assert time.monotonic() - begin < 30
    (missing,) = re.findall(r"The budget ended before: (.*?)\.", " ".join(out.split()))
    assert "the first option of every segment" in missing
    assert "0 of " in out


def children(process: subprocess.Popen[str]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def count(folder: Path) -> int:
    with Store.open(folder) as store:
        return len([*store.entries()])


def test_ctrl_c(project: Path, tmp_path: Path) -> None:
    """The step has layers of several widths, so that it is not all measured before the signal."""
    options = ("--mesh", 2, "--cache-dir", tmp_path, "--json")
    with start(project, "project:varied", *options) as process:
        assert until(lambda: count(tmp_path) >= 1, 60)
        workers = children(process)
        assert workers
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - begin < 4  # two seconds, were this machine ours
    assert process.returncode == 1
    assert out == ""
    assert "Traceback" not in err
    assert all(gone(pid) for pid in workers)
    kept = count(tmp_path)
    said = "cfp: Interrupted. {} measurements are kept: the same command goes on from there."
    # the last one is written before it is counted
    assert err.splitlines()[-1] in (said.format(kept), said.format(kept - 1))
    document = json.loads(run(project, "project:varied", *options)[0])
    assert document["complete"]
    assert document["loaded"] == kept
    assert document["compiled"] <= count(tmp_path) - kept + 1  # the anchor


def test_only_what_is_new_is_measured(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new(**changes: Any) -> list[str]:
        """What a step makes the runner compile."""
        heard = Heard()
        runner = FakeRunner(clock)
        measured(runner, tmp_path, analysis=analysed(**changes), progress=heard)
        names = {found.name for found in heard.measurements}
        assert bool(names) == bool(runner.calls)
        return sorted(name.partition(":")[0].rstrip(" 0123456789") for name in names)

    everything = new(layers=4)
    assert {*everything} == {"idle", "segment", "resharding", "chained segment"}
    assert new(layers=4) == []
    assert new(layers=9) == []  # deeper, with the same layers
    assert {*new(layers=4, width=32)} == {"segment", "resharding", "chained segment"}
    assert {*new(layers=4, dtype="bfloat16")} == {"segment", "resharding", "chained segment"}
    assert {*new(layers=4, mesh_shape=(4,))} == {*everything}
    monkeypatch.setattr(jax, "__version__", "99.0")
    assert new(layers=4) == everything
    assert new(layers=9) == []


def test_at_any_budget_what_there_is_is_valid(clock: Clock, tmp_path: Path) -> None:
    """More time is more measurements; what is missing is named; the next run has the rest."""
    times = {"idle": 0.25}
    analysis = analysed(layers=4)
    whole = measured(FakeRunner(clock, times), tmp_path / "whole", analysis=analysis)
    assert whole.complete
    total = count(tmp_path / "whole")
    counts, missing = [], []
    for budget_s in (1, 15, 40, 100, 10_000):
        folder = tmp_path / str(budget_s)
        begin = clock.now
        profile = measured(FakeRunner(clock, times), folder, analysis=analysis, budget_s=budget_s)
        assert clock.now - begin <= budget_s + 1
        assert profile.complete == (not profile.missing)
        missing.append(profile.missing)
        counts.append(count(folder))
        for segment, full in zip(profile.segments, whole.segments, strict=True):
            assert segment.finished == ("options that may be faster" not in profile.missing)
            for option, cost in segment.costs.items():  # the fixed part comes last
                assert cost.memory == full.costs[option].memory
                assert cost.time_s >= full.costs[option].time_s
        rest = measured(FakeRunner(clock, times), folder, analysis=analysis)
        assert rest.complete
        assert rest.loaded == counts[-1]
        assert count(folder) == total
        assert [s.costs for s in rest.segments] == [s.costs for s in whole.segments]
        assert rest.reshardings == whole.reshardings
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, total)
    assert len({*counts}) >= 4
    assert missing[0][:2] == (
        "what starting a program takes",
        "the first option of every segment",
    )
    assert "the first option of every segment" not in missing[3]
    assert missing[-1] == ()


def test_segments_that_take_no_longer_than_a_start(clock: Clock, tmp_path: Path) -> None:
    """Their net time is nothing: that is a measurement like any other."""
    profile = measured(
        FakeRunner(clock, {"idle": 1.1}), tmp_path, analysis=analysed(layers=4), exhaustive=False
    )
    assert profile.complete
    costs = [cost for segment in profile.segments for cost in segment.costs.values()]
    assert len(costs) == 9
    assert not any(cost.rough for cost in costs)


def test_plain_lines_where_no_terminal_listens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "PLAIN_EVERY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "40")
    with TerminalProgress(Console(stderr=True)) as progress:
        progress.expect(3)
        progress.loaded(7)
        progress.compiling(["resharding: float32[16, 16] (0,) -> (1,)", "segment 0: batch"])
        progress.measured(Measurement("k", "segment 0: batch", (2e-3,)), 1.5e-3)
        progress.ahead(40, 50)
        progress.running(["segment 0: [red]output features"])
        progress.waiting("process 12 on boxa (cfp plan gpt) since 2026-11-18 02:31:07")
        progress.lost("signal \x1b[31m9")
        progress.measured(Measurement("k", "segment 0: batch", failed="no [bold]memory"), None)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [re.sub(r"about \d+ s left", "about N s left", x) for x in captured.err.splitlines()]
    assert lines[:3] == [
        "0/3 programs: compiling resharding: float32[16, 16] (0,) -> (1,) and 1 more",
        "1/3 programs, about N s left, best 1.50 ms (segment 0): "
        "running segment 0: [red]output features",
        "1/3 programs, about N s left, best 1.50 ms (segment 0): waiting for the devices, held by "
        "process 12 on boxa (cfp plan gpt) since 2026-11-18 02:31:07",
    ]
    rest = " ".join(" ".join(lines[3:]).split())
    assert "Worker lost (signal ?[31m9); starting another." in rest
    assert "segment 0: batch does not run: no [bold]memory" in rest
    assert "\x1b" not in captured.err
    assert progress.kept == 9


def test_not_a_line_for_every_program(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalProgress(Console(stderr=True), budget_s=100) as progress:
        progress.expect(50)
        for i in range(50):
            progress.running([f"segment {i}: batch"])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(
        r"0/50 programs, at most (99|100) s left: running segment 0: batch", lines[0]
    )
