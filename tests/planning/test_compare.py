"""Plans measured in turn."""

from __future__ import annotations

import pytest

import cfp
from cfp.planning.compare import _ranked
from cfp.profile.measure.measurement import Measurement
from tests.planning.test_planner import args, step
from tests.profile.cases import mesh


def test_every_plan_is_measured() -> None:
    where = mesh((2,))
    plans = {
        "data": cfp.templates.data_parallel(step, *args(), mesh=where),
        "state": cfp.templates.zero1(step, *args(), mesh=where),
        "other": "it does not divide",
    }
    found = cfp.compare(step, *args(), mesh=where, plans=plans, rounds=5, isolate=False)
    assert {one.name for one in found.plans} == set(plans)
    fastest, slower, _ = found.plans
    assert fastest.ratio == fastest.ratio_low == fastest.ratio_high == 1
    assert fastest.verdict == "tie"
    assert slower.ratio_low is not None
    assert slower.ratio_high is not None
    assert slower.ratio_low <= slower.ratio <= slower.ratio_high
    assert 0 < fastest.low_s <= fastest.time_s <= fastest.high_s
    assert fastest.time_s <= slower.time_s
    assert fastest.memory_bytes > 0
    assert found.to_json()["plans"][0]["verdict"] == "tie"
    told = {"name": "other", "failed": "it does not divide"}
    assert {k: v for k, v in found.to_json()["plans"][2].items() if v is not None} == told


def measurement(name: str, *runs_s: float) -> Measurement:
    return Measurement(name, name, runs_s)


def test_ratios_are_of_the_same_round() -> None:
    """Both slow down together: one is slower, though their ranges overlap."""
    steady = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    found = _ranked(
        {
            "slow": measurement("slow", *(1.1 * s for s in steady)),
            "fast": measurement("fast", *steady),
        },
        error=0.0,
    )
    assert [one.name for one in found] == ["fast", "slow"]
    assert found[1].ratio_low == pytest.approx(1.1)
    assert found[1].verdict == "slower"
    assert found[1].low_s < found[0].high_s


def test_bad_input() -> None:
    where = mesh((2,))
    with pytest.raises(cfp.CfpError, match="no plan to measure"):
        cfp.compare(step, *args(), mesh=where, plans={"a": "why"})
    plan = cfp.templates.data_parallel(step, *args(), mesh=where)
    with pytest.raises(cfp.CfpError, match="compare plans of one mesh"):
        cfp.compare(step, *args(), mesh=mesh((4,)), plans={"a": plan})
    with pytest.raises(cfp.CfpError, match="`rounds` is 0"):
        cfp.compare(step, *args(), mesh=where, plans={"a": plan}, rounds=0)
