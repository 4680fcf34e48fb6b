"""The time left is honest: simulated campaigns, from the first option to the last full step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cfp.layouts.state import State
from cfp.planning.leading import leading_plans
from cfp.profile.api import Manner, new_campaign
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.progress import FULL_STEP, RESHARDING, Ahead, Outlook, kind_of, left_text
from cfp.profile.measure.rounds import AGREEING, USUAL
from cfp.profile.measure.store import Store
from cfp.profile.profiler import measure_segments
from cfp.profile.programs import requests
from cfp.profile.runners.job import Compiled, Failed, Memory
from tests.profile.fake_runner import (
    MACHINE,
    MEMORY,
    Clock,
    FakeRunner,
    Heard,
    clock,
    request,
)
from tests.profile.steps import analysed, mesh_of

__all__ = ["clock"]
FACTOR = 2.0  # that an estimate may be off by
MOST = 0.8  # of a run's time, in which it is not
MUCH = Memory(0, 0, 2**20, 0)  # so that some of it may be what is kept for the backward pass


@dataclass
class Slow(FakeRunner):
    """Compiles one program after the other, each as long as its kind takes, more or less."""

    compiles: dict[str, float] = field(default_factory=dict)
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    memory: Memory = MEMORY

    def finished(self, timeout_s: float) -> list[Compiled | Failed]:
        self._call("finished", self.pending, self.pending)
        done, self.pending = self.pending, []
        answers: list[Compiled | Failed] = []
        for key in done:
            usual_s = self.compiles[kind_of(self.names[key])]
            seconds = usual_s * self.draw.uniform(0.7, 1.4)
            self.clock.now += seconds
            answers.append(Compiled(key, seconds, self.memory))
        return answers


class Told(Heard):
    """Remembers what was told to be left, and when."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.left: list[tuple[float, float, float]] = []

    def ahead(self, low_s: float, high_s: float) -> None:
        self.left.append((self.clock.now, low_s, high_s))


def told_within(
    left: Sequence[tuple[float, float, float]], start: float, end: float, factor: float = FACTOR
) -> float:
    """The share of a run's time in which what was told last was right within a factor."""
    good_s = 0.0
    following = [at for at, _, _ in left[1:]] + [end]
    for (at, low_s, high_s), until in zip(left, following, strict=True):
        true_s = end - at
        if low_s / factor <= true_s <= high_s * factor:
            good_s += until - at
    return good_s / (end - start)


# seconds that compiling and running a layer take; how many full steps there are, and how much more
# compiling one takes than compiling its segments
SLOW_TO_COMPILE = (8.0, 0.05, 8, 1.3)
# two layers are one segment of 81 options, of which some are measured; eight are three segments of
# 9 options, one of which repeats
CAMPAIGNS = {
    "one segment": (2, SLOW_TO_COMPILE),
    "three segments": (8, SLOW_TO_COMPILE),
    "running is slow": (8, (1.0, 1.5, 8, 1.3)),
    "full steps are most": (8, (2.0, 0.2, 16, 1.6)),
    "no full steps": (2, (4.0, 0.2, 0, 1.0)),
}


def simulated(
    clock: Clock,
    folder: Path,
    layers: int,
    case: tuple[float, float, int, float],
    limit_bytes: float | None = None,
) -> tuple[Told, float, Slow]:
    """Runs a campaign whose programs take what the case says; returns what was told of the time
    left, when it began, and what ran it. Under a limit the leading plans are looked for."""
    compile_s, run_s, full_steps, more = case
    analysis = analysed(layers=layers, mesh_shape=(2, 2))
    whole = 1.0 if layers == 2 else layers - 0.5  # in layers: the last takes half as long
    layer = {"chained segment 1": 2.0, "segment 0": 1.0, "segment 1": 1.0, "segment 2": 0.5}
    runner = Slow(
        clock,
        {kind: part * run_s for kind, part in layer.items()}
        | {FULL_STEP: whole * run_s, RESHARDING: 1e-3, "idle": 1e-4},
        compiles={kind: part * compile_s for kind, part in layer.items()}
        | {FULL_STEP: more * whole * compile_s, RESHARDING: 0.2, "idle": 0.1},
        memory=MEMORY if limit_bytes is None else MUCH,
    )
    told = Told(clock)
    start = clock.now

    with Store.open(folder) as store:
        budget = Budget.of(None).followed_by(full_steps, 0)
        campaign = new_campaign(
            MACHINE, runner, store, Manner(effort=USUAL, progress=told, budget=budget)
        )
        scope = Scope(states=tuple(State), memory_limit_bytes=limit_bytes)
        leads = None if limit_bytes is None else leading_plans
        profile = measure_segments(campaign, analysis, mesh_of(2, 2), scope, leads)
        assert profile.complete
        campaign.outlook.later = {}
        steps = [request(f"full step: {number}") for number in range(full_steps)]
        with campaign.trying(wave=8, warmups=1, fewest=AGREEING, follows=True):
            campaign.measure(steps, together=True)
    for at, low_s, high_s in told.left:  # shown where the test fails
        print(f"{at - start:6.0f} true {clock.now - at:6.0f} told {low_s:6.0f} to {high_s:6.0f}")
    return told, start, runner


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lower", "export"):
        monkeypatch.setattr(requests, name, lambda *given: b"")


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("layers", "case"), CAMPAIGNS.values(), ids=CAMPAIGNS)
def test_the_time_left_is_within_a_factor_of_two_through_most_of_a_run(
    clock: Clock, tmp_path: Path, layers: int, case: tuple[float, float, int, float]
) -> None:
    told, start, _ = simulated(clock, tmp_path, layers, case)
    assert told_within(told.left, start, clock.now) >= MOST
    assert all(low_s <= high_s for _, low_s, high_s in told.left)
    late = start + 0.8 * (clock.now - start)
    widest = max(high_s / low_s for at, low_s, high_s in told.left if at < late)
    assert widest < 4, "a range that says nothing"


@pytest.mark.usefixtures("uncompiled")
def test_it_counts_what_a_memory_limit_makes_it_measure(clock: Clock, tmp_path: Path) -> None:
    """Options with state split further, and what they keep. They are counted once the first options
    show that memory counts, not when their stage begins."""
    told, start, runner = simulated(clock, tmp_path, 8, (4.0, 0.2, 0, 1.0), limit_bytes=1.0)
    names = [runner.names[key] for key in runner.submitted() if "segment" in runner.names[key]]
    again = [name for name in names if "keeps" in name]
    further = [name for name in names if "zero1" in name or "fsdp" in name]
    assert again
    assert len({*again, *further}) > 0.2 * len(names)
    assert told_within(told.left, start, clock.now, 1.3) >= MOST


def test_nothing_is_said_before_anything_is_known() -> None:
    outlook = Outlook()
    outlook.later = {"segment 0": Ahead(1, 4), FULL_STEP: Ahead(2, 2)}
    assert outlook.left_s({"idle": 2}) is None
    outlook.saw([("idle", 1.0)], 1.0)
    assert outlook.left_s({"idle": 2}) is None  # what does nothing tells nothing of a segment
    outlook.saw([("segment 0", 1.0)], 1.0)
    assert outlook.left_s({"idle": 2}) is None  # a full step may take hours
    outlook.expect_each(FULL_STEP, 100.0)
    assert outlook.left_s({"idle": 2}) == (2 + 1 + 200, 2 + 4 + 200)
    outlook.saw([(FULL_STEP, 1.0)], 50.0)
    assert outlook.left_s({}) == (1 + 100, 4 + 100)


def test_what_the_store_had_it_may_have_again() -> None:
    """It may also have nothing of it: only the lower end knows."""
    outlook = Outlook()
    outlook.later = {"segment 0": Ahead(10, 20)}
    outlook.saw([("segment 0", 3.0), ("segment 0", 1.0)], 8.0)
    low_s, high_s = outlook.left_s({}) or (0.0, 0.0)
    outlook.found(10, 5)
    assert outlook.left_s({}) == (low_s / 2, high_s)


@pytest.mark.parametrize(
    ("left", "text"),
    [
        ((38, 52), "about 45 s"),
        ((1, 9), "about 5 s"),
        ((12, 60), "12 to 60 s"),
        ((50, 200), "1 to 3 min"),
        ((500, 600), "about 9 min"),
    ],
)
def test_as_people_read_it(left: tuple[float, float], text: str) -> None:
    assert left_text(*left) == text
