"""What people read while a step trains, and after."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from cfp.report.training import TrainingProgress, line_every, summary_lines
from cfp.training import Training, TrainStep

FACTS = Training(
    plan="megatron",
    mesh={"x": 2, "y": 2},
    devices=4,
    device_kind="H200",
    fed_back=("state",),
    as_given=("batch",),
    loss_path="result[1]['loss']",
    flops=2e12,
    tokens=1000,
    predicted_s=0.04,
)


def test_the_summary() -> None:
    steps = [TrainStep(1, 5.0, 3.0), TrainStep(2, 4.0, 0.05), TrainStep(3, 3.5, 0.05)]
    assert summary_lines(FACTS.after(steps)) == [
        "Trained 3 steps with megatron on x=2, y=2 (4 H200 devices).",
        "  loss        5.0000 at first, 3.5000 at last",
        "  step time   50.00 ms, median of 2; the first, which compiles, took 3.00 s",
        "  throughput  20,000 tokens/s, 40 TFLOP/s, all devices together",
        "  predicted   40.00 ms: measured is 1.25 times that",
    ]
    known = replace(FACTS, peak_flops=1e14).after(steps)
    assert known.mfu == pytest.approx(0.1)
    assert "40 TFLOP/s, MFU 10.0%, all devices" in summary_lines(known)[3]
    assert summary_lines(FACTS.after(steps[:1]))[-1] == (
        "  step time   not known: the first, which compiles, took 3.00 s"
    )
    assert summary_lines(FACTS.after([TrainStep(1, None, 3.0)]))[1].startswith(
        "  loss        not known"
    )
    assert summary_lines(FACTS) == ["No step was done."]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    with TrainingProgress(console, FACTS, 1000, renewed=("batch",)) as progress:
        for number in range(1, 1001):
            progress.stepped(TrainStep(number, 1 / number, 0.05 if number > 1 else 3.0))
    shown = text.getvalue()
    assert "`state` from the step before; `batch` new every step." in shown
    assert "step    1/1000  loss 1.0000  3.00 s, compiling included" in shown
    assert "step  500/1000  loss 0.002  50.00 ms  20,000 tokens/s  40 TFLOP/s" in shown
    if not terminal:
        assert len(shown.splitlines()) == 22


def test_lines_are_few() -> None:
    assert [line_every(steps) for steps in (1, 20, 21, 50, 100, 101, 10**6)] == [
        1,
        1,
        2,
        5,
        5,
        10,
        50_000,
    ]
