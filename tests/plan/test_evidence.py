"""Which of the measured steps tie."""

from __future__ import annotations

import json

import pytest

from cfp.errors import CfpError
from cfp.plan.evidence import Evidence, MeasuredStep, tied
from cfp.plan.fields import Fields

ROUNDS = (1.0, 1.4, 0.9, 1.1, 1.3, 1.0)  # how slow the machine was


def step(name: str, *runs_s: float) -> MeasuredStep:
    return MeasuredStep(name, None, 1.0, min(runs_s), max(runs_s), 1, runs_s=runs_s)


def test_round_by_round() -> None:
    """The ranges of all three overlap."""
    plan = step("plan", *ROUNDS)
    slower = step("slower", *(1.05 * slow for slow in ROUNDS))
    mixed = step("mixed", *(slow * (0.98 if i else 1.2) for i, slow in enumerate(ROUNDS)))
    assert tied([plan, slower, mixed]) == [mixed]
    assert not plan.ties(slower)
    assert mixed.ties(plan)


def test_those_that_did_not_run_tie_with_nothing() -> None:
    assert tied([step("plan", *ROUNDS), MeasuredStep("fsdp", None, 0.0, 0.0, 0.0, 0, "why")]) == []


def test_plans_of_before_runs_were_kept() -> None:
    """They load, and nothing is claimed of them."""
    evidence = Evidence(
        memory_limit_bytes=None,
        slack_bytes=0,
        seed=0,
        seconds=1.0,
        programs=1,
        loaded=0,
        segments=(),
        frontier=(),
        steps=(step("plan", *ROUNDS), step("other", *(2 * slow for slow in ROUNDS))),
    )
    document = json.loads(json.dumps(evidence.to_json()))
    assert Evidence.from_fields(Fields("plan.json", document)) == evidence
    assert tied(evidence.steps) == []
    for one in document["steps"]:
        del one["runs_s"]
    older = Evidence.from_fields(Fields("plan.json", document)).steps
    assert tied(older) == [older[1]]
    document["steps"][0]["runs_s"] = [1.0, True]
    with pytest.raises(CfpError, match=r"steps\[0\]: `runs_s` is \[1.0, true\]"):
        Evidence.from_fields(Fields("plan.json", document))
