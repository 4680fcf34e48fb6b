"""The verdict: five lines that a stranger understands, and that claim no more than was measured."""

from __future__ import annotations

import doctest
from dataclasses import replace

from cfp.plan import Plan
from cfp.plan.evidence import MeasuredStep
from cfp.plan.target import Target
from cfp.profile.measure.measurement import Provenance
from cfp.profile.measure.sent import Sent
from cfp.report import verdict
from cfp.report.page import figures, strip
from cfp.report.verdict import speedups, tokens_of, verdict_lines, why
from tests.report.llama import make_plan
from tests.report.test_evidence import EVIDENCE, measured, planned

ROUNDS = (1.0, 1.1, 0.9, 1.2, 1.0, 1.05, 0.95, 1.1)


def step(name: str, times: float, sends: float | None) -> MeasuredStep:
    sent = None if sends is None else (Sent("all-reduce", (0,), "a.py:1", 1, sends),)
    made = measured(name, None, tuple(times * slow for slow in ROUNDS), 2**20)
    return replace(made, sent=sent)


def beside(*others: MeasuredStep) -> Plan:
    confirmed = (step("predicted 1", 1.0, 1000.0), *others)
    return replace(planned(), evidence=replace(EVIDENCE, confirmed=confirmed))


def reason(plan: Plan) -> str:
    assert plan.evidence is not None
    return why(plan.evidence)


def test_five_lines() -> None:
    assert verdict_lines(make_plan()) == [
        "A step takes 342.34 ms on 8 devices (x=8, NVIDIA H200), measured; 337.00 ms was predicted "
        "(-2%).",
        "It is 1.02 times as fast as zero1 (1.02 to 1.03); 1.04 times as fast as fsdp (1.03 to "
        "1.05); 1.14 times as fast as megatron (1.14 to 1.15); 1 more in the table.",
        "Each device needs 77.0 GiB of the 132.0 GiB that it may use.",
        "It trains 95,719 tokens/s and computes 511.2 TFLOP/s on each device, 52% of its peak "
        "(MFU).",
        "It wins over zero1, the closest: it communicates for 57.06 ms (zero1: 67.72 ms) and "
        "computes for 285.28 ms (zero1: 282.18 ms); this plan sends less: 8.0 GiB a step, zero1 "
        "10.4 GiB.",
    ]


def test_the_fastest_rival_comes_first() -> None:
    plan = beside(step("slow", 3.0, None), step("near", 1.5, None))
    assert plan.evidence is not None
    assert [one.name for one in speedups(plan.evidence)] == ["near", "slow"]


def test_why_it_wins() -> None:
    assert "; this plan sends less: 1000 B a step, fsdp 2.0 KiB" in reason(
        beside(step("fsdp", 1.5, 2000.0))
    )
    assert "; this plan sends more: 1000 B a step, fsdp 500 B" in reason(
        beside(step("fsdp", 1.5, 500.0))
    )
    assert "both send about as much" in reason(beside(step("fsdp", 1.5, 1010.0)))
    assert reason(beside(step("fsdp", 1.5, None))) == "It wins over fsdp, the closest."


def test_it_does_not_claim_to_win_where_it_does_not() -> None:
    near = replace(step("fsdp", 1.0, 2000.0), runs_s=(1.1, 1.0, 1.0, 1.1, 1.1, 1.0, 1.0, 1.1))
    assert "do not tell it apart from fsdp" in reason(beside(near))
    assert "fsdp is faster: plan again with a longer budget" in reason(
        beside(step("fsdp", 0.7, 2000.0))
    )
    tied = verdict_lines(beside(step("fsdp", 1.0, None)))[1]
    assert tied == "It is as fast as fsdp."
    assert "It is as fast as fsdp, within 5%" in reason(beside(step("fsdp", 1.0, None)))


def test_nothing_ran_beside_it() -> None:
    lines = verdict_lines(beside())
    assert "Nothing ran beside it: `cfp plan --beside all`" in lines[1]
    assert "composed of the measured ways" in lines[-1]


def test_no_full_step_was_run() -> None:
    plan = replace(planned(), evidence=replace(EVIDENCE, steps=(), confirmed=()))
    lines = verdict_lines(plan)
    assert lines[0].startswith("A step is predicted to take 24.00 ms on 4 devices")
    assert "as predicted of the 100.0 MiB" in lines[2]


def test_a_template_was_not_measured() -> None:
    lines = verdict_lines(replace(planned(), evidence=None, predicted=None))
    assert "Nothing was measured for this plan" in lines[1]


def test_what_was_replayed_is_not_called_measured() -> None:
    replayed = replace(step("predicted 1", 1.0, None), provenance=Provenance.REPLAYED)
    plan = replace(planned(), evidence=replace(EVIDENCE, confirmed=(replayed,)))
    assert verdict_lines(plan)[0].startswith("A step would take 1.0")
    assert ", replayed; " in verdict_lines(plan)[0]


def test_tokens_are_those_of_a_built_in_model() -> None:
    assert tokens_of(Target("gpt", (("batch", 4), ("seq", 8)))) == 32
    assert tokens_of(Target("my.project:make_step")) is None
    assert tokens_of(None) is None


def test_examples_in_docstrings() -> None:
    for module in (verdict, strip, figures):
        found = doctest.testmod(module)
        assert found.attempted > 0
        assert found.failed == 0
