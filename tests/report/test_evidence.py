"""Why a plan was chosen, as people read it."""

from __future__ import annotations

import io
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import replace

import jax
import pytest
from rich.console import Console

import cfp
from cfp.plan import Plan, Predicted
from cfp.plan.evidence import Evidence, FailedProgram, FrontierPoint, MeasuredStep, SegmentCost
from cfp.plan.fields import Fields
from cfp.planning.audit import NO_TIME
from cfp.planning.compare import ComparedPlan, Comparison
from cfp.profile.measure.confidence import Verdict, median_interval
from cfp.report import render_page, show_comparison, show_planned
from cfp.report.evidence import segment_rows
from tests.plan.steps import mesh_of
from tests.planning.test_planner import args, step

MIB = 2**20
LAYER = "batch, output features, input features (zero1)"


def measured(
    name: str, predicted_s: float | None, runs_s: tuple[float, ...], needs: int
) -> MeasuredStep:
    time_s, interval = statistics.median(runs_s), median_interval(runs_s)
    return MeasuredStep(name, predicted_s, time_s, *interval, needs, runs_s=runs_s)


EVIDENCE = Evidence(
    memory_limit_bytes=100 * MIB,
    slack_bytes=MIB // 2,
    seed=0,
    seconds=12.3,
    programs=40,
    loaded=30,
    start_s=5e-4,
    segments=(
        SegmentCost("output features", 1e-3, 1e-3, 0.0, 0.0, 3 * MIB, MIB),
        SegmentCost(LAYER, 6e-3, 4e-3, 2e-3, 1e-3, 20 * MIB, 0),
        SegmentCost(LAYER, 6e-3, 4e-3, 2e-3, 0.0, 20 * MIB, 0),
        SegmentCost(LAYER, 6e-3, 4e-3, 2e-3, 0.0, 20 * MIB, 0),
        SegmentCost("batch", 3e-3, 2e-3, 1e-3, 5e-4, 4 * MIB, 2 * MIB),
    ),
    frontier=tuple(
        FrontierPoint(1e-3 * (60 - i), (50 + i) * MIB, f"0: output features; 1-3: way {i}")
        for i in range(20)
    ),
    steps=(
        measured("predicted 2", 23e-3, (21e-3, 22e-3, 23e-3, 22e-3, 21e-3, 22e-3), 71 * MIB),
        measured("predicted 1", 22e-3, (23e-3, 22e-3, 21e-3, 22e-3, 23e-3, 21e-3), 70 * MIB),
        MeasuredStep("predicted 3", 24e-3, left_out=NO_TIME),
    ),
    confirmed=(
        measured("predicted 2", 23e-3, (22.5e-3, 23e-3, 23.5e-3, 23e-3, 22.5e-3, 23e-3), 71 * MIB),
        measured("megatron", None, (29e-3, 30e-3, 31e-3, 30e-3, 29e-3, 32e-3), 90 * MIB),
        measured("zero1", None, (23e-3, 23e-3, 23e-3, 22.5e-3, 23e-3, 23e-3), 60 * MIB),
        MeasuredStep("alpa", None, left_out=NO_TIME),
        MeasuredStep("fsdp", None, failed="out of memory: 2 GiB"),
    ),
    failed=(
        FailedProgram("segment 0: batch", "the worker crashed: Check failed", True),
        FailedProgram("segment 1: batch, batch", "the worker crashed: Check failed", True),
        FailedProgram("full step: fsdp", "the worker was killed by signal 9 (SIGKILL)", False),
    ),
)


def planned() -> Plan:
    made = cfp.templates.data_parallel(step, *args(), mesh=mesh_of(4))
    environment = replace(
        made.environment, jax="0.0.1", jaxlib="0.0.1", cfp="0.0.1", device_kind="cpu"
    )
    return replace(
        made,
        name="cfp",
        environment=environment,
        predicted=Predicted(24e-3, 15.5e-3, 8.5e-3, 69 * MIB),
        notes=("Not told apart from this plan: predicted 1.",),
        evidence=EVIDENCE,
    )


@pytest.fixture
def plan() -> Plan:
    return planned()


def text_of(show: Callable[[Console], None], width: int = 100) -> str:
    out = io.StringIO()
    show(Console(file=out, width=width, color_system=None))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("width", [100, 80, 60])
def test_what_plan_prints(plan: Plan, golden: Callable[[str, str], None], width: int) -> None:
    text = text_of(lambda console: show_planned(plan, console), width)
    assert max(map(len, text.splitlines())) <= width
    golden("planned.txt" if width == 100 else f"planned_{width}.txt", text)


def test_a_log_has_no_colours_and_a_terminal_may_do_without(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(**options: bool) -> str:
        out = io.StringIO()
        show_planned(plan, Console(file=out, width=80, **options))
        return out.getvalue()

    assert "\x1b" not in printed(), "a file is no terminal"
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = re.compile(r"\x1b\[[0-9;]*\b[34][0-7]\b")
    assert not coloured.search(printed(force_terminal=True))


def test_what_was_not_measured_is_not_nothing(plan: Plan) -> None:
    """A segment whose trace failed takes what it takes; its shares, and the plan's, are unknown."""
    first = replace(EVIDENCE.segments[0], compute_s=None, communication_s=None)
    evidence = replace(EVIDENCE, segments=(first, *EVIDENCE.segments[1:]))
    untold = replace(plan, evidence=evidence, predicted=Predicted(24e-3, None, None, 69 * MIB))
    text = text_of(lambda console: show_planned(untold, console))
    assert "24.00 ms a step (how much of it is communicating: not measured), 69.0 MiB" in text
    (row,) = (line for line in text.splitlines() if line.startswith(" 0 "))
    assert row.split()[3:7] == ["not", "measured", "not", "measured"]
    assert first.time_s == 1e-3
    document = json.loads(json.dumps(evidence.to_json()))
    assert document["segments"][0]["communication_s"] is None
    assert Evidence.from_fields(Fields("plan.json", document)) == evidence
    for entry in document["segments"][1:]:
        del entry["segment_s"]  # as plans of before have it
    older = Evidence.from_fields(Fields("plan.json", document))
    assert older.segments[1].time_s == pytest.approx(7e-3)
    legend = '"value":"not told apart"'
    assert legend in render_page(untold), "the chart has a colour for it"
    assert legend not in render_page(plan)


def test_rows_add_up_to_the_prediction(plan: Plan) -> None:
    """The sum has what starting the step takes; segments that are split alike may differ in
    cost."""
    assert plan.predicted is not None
    first, second, third, *rest = EVIDENCE.segments
    third = replace(third, resharding_s=1e-18, scratch_bytes=7)  # none of which is shown
    rows = segment_rows(replace(EVIDENCE, segments=(first, second, third, *rest)))
    assert [where for where, _ in rows] == ["0", "1", "2-3 (x2)", "4", ""]
    assert sum(cost.time_s for _, cost in rows) == pytest.approx(plan.predicted.time_s)
    assert sum(cost.compute_s or 0.0 for _, cost in rows) == pytest.approx(plan.predicted.compute_s)
    assert sum(cost.kept_bytes for _, cost in rows) == sum(
        one.kept_bytes for one in EVIDENCE.segments
    )


def test_meshes_that_were_tried(plan: Plan) -> None:
    other = replace(plan, mesh=jax.make_mesh((2, 2), ("x", "y")))
    text = text_of(lambda console: show_planned(plan, console, [(other, 0.3), (plan, 0.2)]))
    rows = [line.split() for line in text.partition("Meshes tried")[2].splitlines()]
    assert ["4", "200.00", "ms", "1.00x"] in rows
    assert ["2x2", "300.00", "ms", "1.50x"] in rows


def test_comparison(golden: Callable[[str, str], None]) -> None:
    found = Comparison(
        15,
        (
            ComparedPlan("cfp", 1e-2, 9e-3, 1.1e-2, 1.0, 1.0, 1.0, 6e-3, 4e-3, 64 * MIB),
            replace(
                ComparedPlan("zero1", 1e-2, 9e-3, 1.1e-2, 1.01, 0.99, 1.02, 6e-3, 4e-3, 48 * MIB),
                verdict=Verdict.TIE,
            ),
            ComparedPlan("fsdp", 1.1e-2, 1e-2, 1.3e-2, 1.08, 0.98, 1.2, None, None, 32 * MIB),
            replace(
                ComparedPlan("alpa", 2e-2, 1.9e-2, 2.1e-2, 2.0, 1.9, 2.1, 1e-2, 1e-2, 96 * MIB),
                verdict=Verdict.SLOWER,
            ),
            ComparedPlan("megatron", failed="6 heads do not divide by 4"),
        ),
    )
    golden("comparison.txt", text_of(lambda console: show_comparison(found, console)))


def test_plan_files_are_shown_without_their_folders() -> None:
    """Files whose names are the same keep them."""
    names = ("runs/may/a.json", "runs/may/b.json", "runs/june/b.json", "fsdp")
    found = Comparison(
        15, tuple(ComparedPlan(n, 1e-2, 9e-3, 1.1e-2, 1.0, 1.0, 1.0, None, None, 1) for n in names)
    )
    text = text_of(lambda console: show_comparison(found, console), width=120)
    shown = [line.split()[0] for line in text.splitlines() if " ms" in line]
    assert shown == ["a.json", "runs/may/b.json", "runs/june/b.json", "fsdp"]
