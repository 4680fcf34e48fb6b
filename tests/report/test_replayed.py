"""What people read of a mesh that is not there: every number says how it is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from cfp.plan import Plan
from cfp.plan.evidence import Evidence, Links, MeasuredStep
from cfp.plan.fields import Fields
from cfp.planning.compare import ComparedPlan, Comparison
from cfp.planning.scaling import Programs, Scaled
from cfp.profile.measure.confidence import Verdict
from cfp.profile.measure.full_step import ALONE
from cfp.profile.measure.measurement import Provenance
from cfp.report import render_page, show_comparison, show_planned, show_scaling
from tests.report.test_evidence import EVIDENCE, MIB, measured, planned, text_of

LINKS = Links((("x", "h200_nvlink"),), 0.02, 1)


def replayed(step: MeasuredStep) -> MeasuredStep:
    if not step.ran:
        return step
    return replace(
        step,
        provenance=Provenance.REPLAYED,
        communication_s=10e-3,
        exposed_s=8e-3,
        error_s=2e-4,
    )


@pytest.fixture
def plan() -> Plan:
    alone = measured(ALONE, None, (60e-3,) * 6, 200 * MIB)
    evidence = replace(
        EVIDENCE,
        steps=tuple(map(replayed, EVIDENCE.steps)),
        confirmed=(*map(replayed, EVIDENCE.confirmed), alone),
        failed=(),
        frontier=(),
        links=LINKS,
    )
    made = planned()
    environment = replace(made.environment, platform="gpu", device_kind="NVIDIA H200", processes=0)
    return replace(made, environment=environment, evidence=evidence, notes=())


def test_what_plan_prints(plan: Plan, golden: Callable[[str, str], None]) -> None:
    golden("planned_replayed.txt", text_of(lambda console: show_planned(plan, console)))


def test_the_page_says_it_too(plan: Plan) -> None:
    page = render_page(plan)
    assert '<th scope="col" class="n">replayed</th>' in page
    assert "Predicted against replayed" in page
    assert "Full steps replayed, with the templates" in page
    assert "replayed, not measured: 1 stood in for all devices" in page
    assert "one device alone (measured)" in page
    assert "replayed: 10 programs in this run, 30 found in the store" in page


def test_a_file_keeps_it(plan: Plan) -> None:
    assert plan.evidence is not None
    document = json.loads(json.dumps(plan.evidence.to_json()))
    assert Evidence.from_fields(Fields("plan.json", document)) == plan.evidence
    del document["links"], document["confirmed"][0]["provenance"]  # as plans of before are
    older = Evidence.from_fields(Fields("plan.json", document))
    assert older.links is None
    assert older.confirmed[0].provenance is Provenance.MEASURED


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("links", {"by_axis": "x", "error": None, "stand_ins": 1}, "by_axis"),
        ("links", {"by_axis": [["x"]], "error": None, "stand_ins": 1}, "by_axis"),
        ("confirmed", [{"provenance": "guessed"}], "provenance"),
    ],
)
def test_a_damaged_file_is_refused(plan: Plan, field: str, value: object, why: str) -> None:
    assert plan.evidence is not None
    document = json.loads(json.dumps(plan.evidence.to_json()))
    if isinstance(value, list):
        value = [{**document[field][0], **value[0]}]
    with pytest.raises(Exception, match=why):
        Evidence.from_fields(Fields("plan.json", {**document, field: value}))


def test_comparison(golden: Callable[[str, str], None]) -> None:
    ours = ComparedPlan("plans/cfp.json", 1e-2, 9e-3, 1.1e-2, 1.0, 1.0, 1.0, 6e-3, 4e-3, 64 * MIB)
    theirs = ComparedPlan("fsdp", 1.01e-2, 9e-3, 1.1e-2, 1.01, 0.99, 1.02, 6e-3, 4e-3, 48 * MIB)
    how = Provenance.REPLAYED
    rows = (
        replace(ours, provenance=how, predicted_s=1.05e-2),
        replace(theirs, provenance=how, verdict=Verdict.LEVEL),
    )
    text = text_of(lambda console: show_comparison(Comparison(15, rows, LINKS), console))
    golden("comparison_replayed.txt", text)


def test_how_many_devices(plan: Plan, golden: Callable[[str, str], None]) -> None:
    how, known = Provenance.REPLAYED, Provenance.PREDICTED
    rows = (
        Scaled(8, (8,), 0.4, how, 80_000.0, 0.41, 70 * 2**30, 1.0, True, Programs(20, 18, 2, 4)),
        Scaled(
            16, (2, 8), 0.25, how, 128_000.0, 0.33, 40 * 2**30, 0.8, True, Programs(30, 20, 10, 0)
        ),
        Scaled(16, (4, 4), 0.5, known, None, None, 41 * 2**30, 0.4, False, Programs(30, 12, 19, 0)),
    )
    golden("scaling.txt", text_of(lambda console: show_scaling(rows, console)))
    page = render_page(plan, rows)
    assert "How many devices" in page
    assert '"chart-scaling"' in page
    assert "How many devices" not in render_page(plan)
