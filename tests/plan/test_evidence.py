"""What the measured steps say of a plan, and what of it files keep."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cfp.errors import CfpError
from cfp.plan.evidence import Evidence, FailedProgram, MeasuredStep
from cfp.plan.fields import Fields
from cfp.profile.measure.confidence import Verdict

ROUNDS = (1.0, 1.4, 0.9, 1.1, 1.3, 1.0)  # how slow the machine was


def step(name: str, *runs_s: float) -> MeasuredStep:
    return MeasuredStep(name, None, 1.0, min(runs_s), max(runs_s), 1, runs_s=runs_s)


EVIDENCE = Evidence(
    memory_limit_bytes=None,
    slack_bytes=0,
    seed=0,
    seconds=1.0,
    programs=1,
    loaded=0,
    start_s=0.1,
    segments=(),
    frontier=(),
    steps=(step("plan", *ROUNDS), step("other", *(2 * slow for slow in ROUNDS))),
    confirmed=(step("plan", *(1.1 * slow for slow in ROUNDS)),),
    failed=(FailedProgram("segment 0: batch", "the worker crashed", True),),
)


def test_round_by_round() -> None:
    """The ranges of all three overlap."""
    plan = step("plan", *ROUNDS)
    slower = step("slower", *(1.05 * slow for slow in ROUNDS))
    mixed = step("mixed", *(slow * (0.98 if i else 1.2) for i, slow in enumerate(ROUNDS)))
    assert slower.beside(plan).verdict is Verdict.SLOWER
    assert plan.beside(slower).verdict is Verdict.FASTER
    assert mixed.beside(plan).verdict is Verdict.UNTOLD


def test_those_that_did_not_run_have_no_figures() -> None:
    """Files of earlier versions have zeros for them."""
    for why in ("failed", "left_out"):
        found = MeasuredStep("fsdp", None, **{why: "no room"})
        assert not found.ran
        assert found.why_not() == {"failed": "does not run: no room"}.get(why, "not run: no room")
        assert found.beside(step("plan", *ROUNDS)).verdict is Verdict.UNTOLD
    evidence = replace(EVIDENCE, steps=(MeasuredStep("fsdp", None, failed="no room"),))
    document = json.loads(json.dumps(evidence.to_json()))
    assert document["steps"][0]["measured_s"] is None
    document["steps"][0] |= {"measured_s": 0.0, "low_s": 0.0, "high_s": 0.0, "memory_bytes": 0}
    del document["steps"][0]["left_out"]
    assert Evidence.from_fields(Fields("plan.json", document)) == evidence


def test_what_is_said_of_the_plan_is_of_fresh_rounds() -> None:
    assert EVIDENCE.own is EVIDENCE.confirmed[0]
    late = (MeasuredStep("plan", None, left_out="no time"),)
    assert replace(EVIDENCE, confirmed=late).own is EVIDENCE.steps[0]
    assert replace(EVIDENCE, confirmed=late, steps=()).own is None


def test_plans_of_before_runs_were_kept() -> None:
    """They load, and nothing is claimed of them."""
    document = json.loads(json.dumps(EVIDENCE.to_json()))
    assert Evidence.from_fields(Fields("plan.json", document)) == EVIDENCE
    for one in document["steps"]:
        del one["runs_s"], one["left_out"]
    for name in ("failed", "confirmed", "start_s"):
        del document[name]
    older = Evidence.from_fields(Fields("plan.json", document))
    assert older.own is older.steps[0]
    assert older.steps[1].beside(older.steps[0]).verdict is Verdict.UNTOLD
    document["steps"][0]["runs_s"] = [1.0, True]
    with pytest.raises(CfpError, match=r"steps\[0\]: `runs_s` is \[1.0, true\]"):
        Evidence.from_fields(Fields("plan.json", document))
