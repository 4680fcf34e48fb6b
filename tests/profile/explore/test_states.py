"""Training state split further: tried with the fastest option, with more where that gains or where
memory counts, and never where nothing is left to split."""

from __future__ import annotations

from pathlib import Path

import pytest

from cfp.layouts.state import State
from cfp.profile.explore.states import FINALISTS, GAINING, NEARLY
from cfp.profile.measure.budget import EXPLORED, LEFT, LEFT_AT_MOST, FullStep
from tests.profile.cases import model, two_products
from tests.profile.fake_runner import Clock, FakeRunner, clock
from tests.profile.steps import analysed, measured

__all__ = ["clock"]
SLOW = {"segment 0": 3.0, "idle": 0.1}
FAST = {"segment 0: batch, batch": 2.0}  # both parameters are whole: ZeRO-1 and FSDP split them

BUDGET_S = 200.0
STEP_S = FullStep(0.5, SLOW["segment 0"]).choosing_s


def options(
    runner: FakeRunner, folder: Path, limit: float | None = None, budget_s: float | None = None
) -> dict[State, list[str]]:
    profile = measured(
        runner,
        folder,
        analysis=two_products(),
        states=tuple(State),
        memory_limit_bytes=limit,
        budget_s=budget_s,
    )
    (segment,) = profile.segments
    found: dict[State, list[str]] = {state: [] for state in State}
    for option in segment.costs:
        found[option.state].append(segment.kind.show(option))
    return found


def test_of_the_fastest_alone_if_it_gains_nothing(clock: Clock, tmp_path: Path) -> None:
    found = options(FakeRunner(clock, {**SLOW, **FAST}), tmp_path)
    assert len(found[State.BLOCK]) == 9
    assert found[State.ZERO1] == ["batch, batch (zero1)"]
    assert found[State.FSDP] == ["batch, batch (fsdp)"]


@pytest.mark.parametrize("whole_s", [2.2, 2.9])
def test_of_the_one_with_most_state_if_it_is_nearly_as_fast(
    clock: Clock, tmp_path: Path, whole_s: float
) -> None:
    """The fastest splits both parameters, so that it has no copies to update."""
    times = {
        "segment 0: output features, input features": 2.0,
        "segment 0: batch, batch": whole_s,
        "segment 0: batch, batch (zero1)": 1.0,
    }
    found = options(FakeRunner(clock, {**SLOW, **times}), tmp_path)
    assert found[State.ZERO1] == (["batch, batch (zero1)"] if whole_s < 2 * NEARLY else [])


def test_of_more_if_it_gains(clock: Clock, tmp_path: Path) -> None:
    gains = {"segment 0: batch, batch (zero1)": 1.5}
    found = options(FakeRunner(clock, {**SLOW, **FAST, **gains}), tmp_path)
    assert 1 < len(found[State.ZERO1]) <= GAINING
    assert found[State.FSDP] == ["batch, batch (fsdp)"]


def test_of_all_finalists_where_memory_counts(clock: Clock, tmp_path: Path) -> None:
    found = options(FakeRunner(clock, {**SLOW, **FAST}), tmp_path, limit=10.0)
    assert 2 < len(found[State.FSDP]) <= 2 * FINALISTS
    split = [names for names in found[State.BLOCK] if "batch" not in names]
    assert split, "parameters that are split over all devices"
    for names in split:  # have no copies to split
        assert f"{names} (zero1)" not in found[State.ZERO1]


def test_a_budget_leaves_time_for_it(clock: Clock, tmp_path: Path) -> None:
    """Exploring options ends after 80 % of it, here with eight of nine."""
    found = options(FakeRunner(clock, {**SLOW, **FAST}), tmp_path, budget_s=177.0)
    assert 1 < len(found[State.BLOCK]) < 9
    assert found[State.ZERO1] == ["batch, batch (zero1)"]
    assert found[State.FSDP] == ["batch, batch (fsdp)"]


def test_a_budget_is_shared_by_all_segments(clock: Clock, tmp_path: Path) -> None:
    """The options of the first segment are not all tried before the second has its turn; most of
    the budget goes to the layers, which take most of a step."""
    slow = {"segment 0": 3.0, "segment 1": 3.0, "chained segment 1": 6.0, "segment 2": 3.0}
    runner = FakeRunner(clock, {"idle": 0.1, **slow})
    layers = model("gpt", layers=6)
    profile = measured(runner, tmp_path, analysis=layers, budget_s=400.0, exhaustive=False)
    first, layer, last = (len(segment.costs) for segment in profile.segments)
    assert "options that may be faster" in profile.missing
    assert min(first, last) > 1
    assert layer >= 1.5 * max(first, last)


@pytest.mark.parametrize("budget_s", [300.0, 400.0])
def test_a_budget_leaves_time_for_what_the_fastest_options_need(
    clock: Clock, tmp_path: Path, budget_s: float
) -> None:
    """Without the reshardings between them no plan can have them, however slow all else is."""
    ends = {"segment 0: output features": 1.0, "segment 2: output features": 1.0}
    slow = {"segment 0": 3.0, "segment 1": 3.0, "chained segment 1": 6.0, "segment 2": 3.0}
    found = measured(
        FakeRunner(clock, {"idle": 0.1, "resharding": 0.2, **slow, **ends}),
        tmp_path,
        analysis=model("gpt", layers=3),
        states=tuple(State),
        budget_s=budget_s,
        exhaustive=False,
    )
    assert "options that may be faster" in found.missing
    fastest = [min(s.costs, key=lambda option: s.costs[option].time_s) for s in found.segments]
    assert [s.kind.show(o) for s, o in zip(found.segments, fastest, strict=True)][::2] == [
        "output features",
        "output features",
    ]
    lie = [s.layouts[option] for s, option in zip(found.segments, fastest, strict=True)]
    for crossing in found.crossings:
        sides = crossing.boundary.source.kind, crossing.boundary.target.kind
        needed = crossing.boundary.resharding(*(lie[kind] for kind in sides))
        assert needed is None or needed in found.reshardings


@pytest.mark.parametrize(
    ("full_steps", "left"), [(0, 0.0), (1, LEFT), (3, 3 * STEP_S / BUDGET_S), (9, LEFT_AT_MOST)]
)
def test_a_budget_leaves_time_for_full_steps(
    clock: Clock, tmp_path: Path, full_steps: int, left: float
) -> None:
    """They get as much as they will take, within bounds; here there is more to measure than
    time."""
    assert left in (0.0, LEFT, LEFT_AT_MOST) or LEFT < left < LEFT_AT_MOST
    runner, start = FakeRunner(clock, SLOW), clock.now
    measured(runner, tmp_path, analysis=two_products(), budget_s=BUDGET_S, full_steps=full_steps)
    explored_s = EXPLORED * (1 - left) * BUDGET_S
    assert explored_s <= clock.now - start <= explored_s + 2 * SLOW["segment 0"]


def test_a_budget_is_for_a_plan_before_it_is_for_full_steps(clock: Clock, tmp_path: Path) -> None:
    """One option of every segment and the reshardings between them may take all of it."""
    layers = analysed(layers=4)
    first = "the first option of every segment"
    ends = []
    for budget_s in (5, 15, 25, 45):
        missing = []
        for full_steps in (0, 9):
            runner = FakeRunner(clock, {"idle": 0.1, "segment": 3.0, "chained segment": 6.0})
            folder = tmp_path / f"{budget_s} {full_steps}"
            profile = measured(
                runner, folder, analysis=layers, budget_s=budget_s, full_steps=full_steps
            )
            missing.append(first in profile.missing)
            assert missing[-1] != all(segment.costs for segment in profile.segments)
        assert missing[0] == missing[1]
        ends += missing[:1]
    assert ends == sorted(ends, reverse=True)
    assert {*ends} == {True, False}
