"""What the line of progress says of the time left."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from cfp.report import TerminalProgress
from cfp.report import progress as module
from tests.profile.fake_runner import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def shown(clock: Clock, progress: TerminalProgress) -> str:
    clock.now += module.PLAIN_EVERY_S
    progress.running(["segment 0: batch"])
    out = progress.console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue().splitlines()[-1]


def make(budget_s: float | None = None) -> TerminalProgress:
    return TerminalProgress(Console(file=io.StringIO(), width=200), budget_s)


def test_nothing_is_said_until_something_is_known(clock: Clock) -> None:
    progress = make()
    progress.expect(3)
    assert shown(clock, progress) == "0/3 programs: running segment 0: batch"
    progress.ahead(60, 240)
    assert "0/3 programs, 1 to 4 min left: running" in shown(clock, progress)


def test_it_counts_down_but_never_to_nothing(clock: Clock) -> None:
    progress = make()
    progress.ahead(75, 75)
    assert ", about 70 s left" in shown(clock, progress)
    clock.now += 40
    assert ", about 25 s left" in shown(clock, progress)
    clock.now += 1000  # much longer than told: it is not over
    assert ", about 19 s left" in shown(clock, progress)


def test_within_the_budget(clock: Clock) -> None:
    progress = make(budget_s=100)
    assert ", at most 95 s left" in shown(clock, progress)
    progress.ahead(60, 600)
    assert ", 60 to 90 s left" in shown(clock, progress)
    clock.now += 200
    assert ", about 0 s left" in shown(clock, progress)


@pytest.mark.parametrize(
    ("asked", "terminal", "told"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_python_shows_it_on_a_terminal_unless_asked_otherwise(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, terminal: bool, told: bool
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(
        module,
        "Console",
        lambda stderr: Console(file=out, width=200, force_terminal=terminal and stderr),
    )
    with module.shown(asked) as progress:
        assert isinstance(progress, TerminalProgress) is told
    with module.shown(progress) as given:
        assert given is progress


def test_on_a_terminal_it_is_one_line_that_redraws(clock: Clock) -> None:
    """It is one line however long the names are: a line that wraps could not be drawn over."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, color_system=None)
    with TerminalProgress(console) as progress:
        progress.stage("analysing the step " + "and what is in it " * 5)
        assert len(console.render_lines(progress._status.renderable, pad=False)) == 1
        progress.expect(12)
        progress.ahead(60, 240)
        progress.running(["chained segment 1: " + "output features, " * 9])
        (drawn,) = console.render_lines(progress._status.renderable, pad=False)
        text = "".join(segment.text for segment in drawn)
        assert "0/12 programs, 1 to 4 min left: running chained segment" in text
        assert len(text) <= 60
    assert out.getvalue().count("\n") <= 1, "nothing scrolled"


def test_a_log_has_plain_lines_and_few(clock: Clock, golden: Callable[[str, str], None]) -> None:
    """Where stderr is no terminal, it gets a line every few seconds, and nothing that steers a
    terminal."""
    out = io.StringIO()
    with TerminalProgress(Console(file=out, width=60), budget_s=300) as progress:
        progress.stage("analysing the step")
        progress.expect(4)
        for second in range(20):
            clock.now += 1
            progress.compiling([f"segment 0: way {second} of splitting it, a name that is long"])
        progress.ahead(60, 90)
        clock.now += module.PLAIN_EVERY_S
        progress.running(["full step: predicted 1", "full step: predicted 2"])
        progress.lost("the worker was killed by signal 9 (SIGKILL)")
    golden("progress_log.txt", out.getvalue())
