"""What is said of two programs is right as often as it says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.confidence import (
    EQUIVALENT,
    ERROR,
    FEWEST,
    Verdict,
    judge,
    judge_replays,
    median_interval,
)

TRIALS = 2000
SLACK = 0.015  # three standard errors of a share of 5 % in so many trials


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([3.0], (3.0, 3.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], (1.0, 5.0)),  # too few: all of them
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (1.0, 6.0)),
        # P(Binomial(10, 1/2) <= 1) = 0.011, <= 2 is 0.055: the second and the ninth
        ([float(i) for i in range(10)], (1.0, 8.0)),
        ([float(i) for i in range(15)], (3.0, 11.0)),
    ],
)
def test_the_interval_of_a_median(runs: Sequence[float], expected: tuple[float, float]) -> None:
    assert median_interval(runs) == expected
    assert median_interval(runs[::-1]) == expected


def log_noise(draw: np.random.Generator, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """How far runs are off, as logarithms: evenly, or with a hiccup of the machine now and then."""
    off = draw.normal(0.0, 0.03, shape)
    if kind == "hiccups":
        off += draw.exponential(0.5, shape) * (draw.random(shape) < 0.1)
    return off


def verdicts(kind: str, ratio: float, rounds: int, seed: int = 0) -> dict[Verdict, float]:
    """How often each is said of a program that takes `ratio` times as long as the other, in rounds
    that are slow for both at times."""
    draw = np.random.default_rng(seed)
    shape = (TRIALS, rounds)
    common = draw.normal(0.0, 0.2, shape)
    runs = np.exp(math.log(ratio) + common + log_noise(draw, kind, shape))
    others = np.exp(common + log_noise(draw, kind, shape))
    said = [judge(a, b).verdict for a, b in zip(runs.tolist(), others.tolist(), strict=True)]
    return {verdict: said.count(verdict) / TRIALS for verdict in Verdict}


@pytest.mark.parametrize("kind", ["even", "hiccups"])
@pytest.mark.parametrize("rounds", [5, 8, 15, ROUNDS])
def test_how_often_it_is_wrong(kind: str, rounds: int) -> None:
    """At the margin a tie is said one time in twenty at most, and beyond it less; of equals neither
    `faster` nor `slower` is said more often."""
    for ratio in (EQUIVALENT, 1 / EQUIVALENT, 1.1):
        assert verdicts(kind, ratio, rounds)[Verdict.TIE] <= ERROR + SLACK
    equal = verdicts(kind, 1.0, rounds)
    assert equal[Verdict.FASTER] <= ERROR + SLACK
    assert equal[Verdict.SLOWER] <= ERROR + SLACK


def test_how_often_it_says_something() -> None:
    """Rounds that differ by 3 % by chance show a tie, or a difference of 6 %, mostly."""
    assert verdicts("even", 1.0, ROUNDS)[Verdict.TIE] > 0.8
    assert verdicts("hiccups", 1.0, ROUNDS)[Verdict.TIE] > 0.6
    assert verdicts("hiccups", 1.0, ROUNDS - 1)[Verdict.TIE] < 0.5
    assert verdicts("even", 1.06, ROUNDS)[Verdict.SLOWER] > 0.9
    assert verdicts("even", 1 / 1.06, ROUNDS)[Verdict.FASTER] > 0.9


@given(
    lost=st.lists(st.floats(1.0001, 3.0), min_size=7, max_size=7),
    won=st.floats(0.3, 0.9999),
    at=st.integers(0, 7),
)
def test_who_loses_seven_of_eight_rounds_is_slower(
    lost: Sequence[float], won: float, at: int
) -> None:
    """It is slower however little it loses by, and so it never ties."""
    assert judge([*lost[:at], won, *lost[at:]], [1.0] * 8).verdict is Verdict.SLOWER


RUNS = st.lists(st.floats(0.5, 2.0), min_size=0, max_size=30)


@given(runs=RUNS, others=RUNS)
def test_both_sides_say_the_same(runs: Sequence[float], others: Sequence[float]) -> None:
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    one, other = judge(runs, others), judge(others, runs)
    assert other.verdict is opposite.get(one.verdict, one.verdict)
    if one.low is not None and other.high is not None:
        assert one.low == pytest.approx(1 / other.high)


@given(runs=st.lists(st.floats(0.5, 2.0), min_size=0, max_size=FEWEST - 1))
def test_few_rounds_show_nothing(runs: Sequence[float]) -> None:
    found = judge(runs, [100.0] * len(runs))
    assert (found.verdict, found.low, found.high) == (Verdict.UNTOLD, None, None)
    assert (found.ratio is None) == (not runs)


def test_a_lack_of_evidence_is_no_tie() -> None:
    """1 is in the interval, and so is 1.3."""
    found = judge([0.9, 1.0, 1.1, 1.2, 1.3, 0.8], [1.0] * 6)
    assert found.verdict is Verdict.UNTOLD
    assert judge([0.99, 1.0, 1.01, 1.02, 1.0, 0.98], [1.0] * 6).verdict is Verdict.TIE


def test_rounds_are_paired() -> None:
    """A round that is slow for both says nothing of either."""
    slow = [1.0, 2.0, 4.0, 1.0, 3.0, 2.0]
    assert judge([1.01 * s for s in slow], slow).verdict is Verdict.SLOWER
    assert judge([1.01 * s for s in slow], slow[::-1]).verdict is Verdict.UNTOLD


@pytest.mark.parametrize(
    ("other_s", "error_s", "verdict"),
    [
        (1.0, 0.0, Verdict.LEVEL),
        (1.009, 0.0, Verdict.LEVEL),
        (1.02, 0.0, Verdict.FASTER),
        (0.98, 0.0, Verdict.SLOWER),
        (1.02, 0.02, Verdict.LEVEL),
        (1.2, 0.1, Verdict.FASTER),
    ],
)
def test_replays_are_judged_by_what_they_may_be_off(
    other_s: float, error_s: float, verdict: Verdict
) -> None:
    found = judge_replays(1.0, other_s, error_s)
    assert found.verdict is verdict
    assert found.ratio == 1.0 / other_s
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.ratio < found.high
