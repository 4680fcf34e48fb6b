"""Why a plan was chosen, as people read it."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable
from dataclasses import replace

import jax
import pytest
from rich.console import Console

import cfp
from cfp.compare import ComparedPlan, Comparison
from cfp.plan import Plan, Predicted
from cfp.plan.evidence import Evidence, FrontierPoint, MeasuredStep, SegmentCost
from cfp.profile.confidence import median_interval
from cfp.report import show_comparison, show_planned
from tests.plan.steps import mesh_of
from tests.planning.test_planner import args, step

MIB = 2**20
LAYER = "rows, columns, contracted (zero1)"


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
    segments=(
        SegmentCost("columns", 1e-3, 0.0, 0.0, 3 * MIB, MIB),
        SegmentCost(LAYER, 4e-3, 2e-3, 1e-3, 20 * MIB, 0),
        SegmentCost(LAYER, 4e-3, 2e-3, 0.0, 20 * MIB, 0),
        SegmentCost(LAYER, 4e-3, 2e-3, 0.0, 20 * MIB, 0),
        SegmentCost("rows", 2e-3, 1e-3, 5e-4, 4 * MIB, 2 * MIB),
    ),
    frontier=tuple(
        FrontierPoint(1e-3 * (60 - i), (50 + i) * MIB, f"0: columns; 1-3: way {i}")
        for i in range(20)
    ),
    steps=(
        measured("predicted 2", 23e-3, (21e-3, 22e-3, 23e-3), 71 * MIB),
        measured("predicted 1", 22e-3, (23.5e-3, 22.5e-3, 21.5e-3), 70 * MIB),
        measured("megatron", None, (29e-3, 30e-3, 31e-3), 90 * MIB),
        MeasuredStep("fsdp", None, 0.0, 0.0, 0.0, 0, "out of memory: 2 GiB"),
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
        predicted=Predicted(23e-3, 15e-3, 8e-3, 69 * MIB),
        notes=("Within noise as fast: predicted 1.",),
        evidence=EVIDENCE,
    )


@pytest.fixture
def plan() -> Plan:
    return planned()


def text_of(show: Callable[[Console], None], width: int = 100) -> str:
    out = io.StringIO()
    show(Console(file=out, width=width, color_system=None))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_what_plan_prints(plan: Plan, golden: Callable[[str, str], None]) -> None:
    golden("planned.txt", text_of(lambda console: show_planned(plan, console)))


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
            ComparedPlan("fsdp", 1.1e-2, 1e-2, 1.3e-2, 1.08, 0.98, 1.2, None, None, 32 * MIB),
            ComparedPlan("alpa", 2e-2, 1.9e-2, 2.1e-2, 2.0, 1.9, 2.1, 1e-2, 1e-2, 96 * MIB),
            ComparedPlan("megatron", failed="6 heads do not divide by 4"),
        ),
    )
    golden("comparison.txt", text_of(lambda console: show_comparison(found, console)))


def test_plan_files_are_shown_without_their_folders() -> None:
    """But for those whose names are the same."""
    names = ("runs/may/a.json", "runs/may/b.json", "runs/june/b.json", "fsdp")
    found = Comparison(
        15, tuple(ComparedPlan(n, 1e-2, 9e-3, 1.1e-2, 1.0, 1.0, 1.0, None, None, 1) for n in names)
    )
    text = text_of(lambda console: show_comparison(found, console), width=120)
    shown = [line.split()[0] for line in text.splitlines() if " ms" in line]
    assert shown == ["a.json", "runs/may/b.json", "runs/june/b.json", "fsdp"]
