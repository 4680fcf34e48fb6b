"""How fast the machine was: drifts correct times as far as they are not chance."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from cfp.profile.measure.findings import TELLING, UsualDrift
from cfp.profile.measure.measurement import Measurement

WAVES, RUNS = 30, 5


def seen(drifts: list[float], sd: float) -> UsualDrift:
    usual = UsualDrift()
    for drift in drifts:
        usual.see(Measurement("a", "a", (1.0,), drift=drift, drift_sd=sd))
    usual.settle()
    return usual


def test_the_usual_drift_is_one() -> None:
    usual = seen([1.5, 2.0, 2.5], 0.3)
    assert usual.drift(2.0) == 1
    assert usual.drift(3.0) == pytest.approx(1.5)  # too few to tell what is chance


def test_drifts_that_anchors_are_sure_of_are_taken_whole() -> None:
    usual = seen([1.1 + 0.1 * i for i in range(TELLING)], 1e-4)
    assert usual.drift(1.8) == pytest.approx(1.8 / 1.3, rel=1e-3)


def test_drifts_that_are_chance_are_not_taken() -> None:
    assert seen([0.97, 0.99, 1.001, 1.02, 1.03], 0.05).drift(1.03) == 1


def test_without_an_anchor_there_is_no_drift() -> None:
    usual = UsualDrift()
    usual.see(Measurement("a", "a", (1.0,)))
    usual.see(Measurement("b", "b", drift=5.0, failed="broken"))
    usual.settle()
    assert usual.drift(1.0) == 1


@pytest.mark.parametrize("drifting", [0.0, 0.02, 0.05, 0.1, 0.3])
def test_times_are_no_worse_than_with_all_of_the_drift_or_none(drifting: float) -> None:
    """The runs of this machine vary by 9 %: what counts is what is left of the drift after it is
    corrected for."""
    left: dict[str, list[float]] = {"whole": [], "none": [], "found": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        true = np.exp(drifting * rng.standard_normal(WAVES))
        anchors = true[:, None] * np.exp(0.09 * rng.standard_normal((WAVES, RUNS)))
        usual, measured = UsualDrift(), np.median(anchors, axis=1)
        for drift, runs in zip(measured, anchors, strict=True):
            sd = 1.25 * statistics.stdev(runs) / RUNS**0.5 / float(np.median(runs))
            usual.see(Measurement("a", "a", (1.0,), drift=float(drift), drift_sd=sd))
        usual.settle()
        found = np.array([usual.drift(float(drift)) for drift in measured])
        for name, by in (("whole", measured), ("none", np.ones(WAVES)), ("found", found)):
            left[name].append(float(np.std(np.log(true / by))))
    error = {name: np.mean(some) for name, some in left.items()}
    assert error["found"] <= 1.1 * min(error["whole"], error["none"]) + 0.01
