"""What a plan shows of itself in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from cfp import templates
from cfp.errors import CfpError
from cfp.plan import Plan
from cfp.plan.place import parts_of
from tests.report.test_evidence import planned

from .steps import mesh_of, mlp_args, mlp_step


@pytest.fixture(scope="module")
def plan() -> Plan:
    return templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2, 2))


def test_printing_a_plan_is_one_line(plan: Plan) -> None:
    assert plan.bound is not None
    assert repr(plan) == "<Plan 'megatron' for a mesh of x=2, y=2>"
    assert str(plan) == repr(plan)
    assert len(repr(plan.bound)) < 200
    said = repr(planned())
    assert said.startswith("<Plan 'cfp' for a mesh of x=4, predicted ")
    assert said.endswith(" on each device>")


def test_show_is_the_short_form_of_explain(plan: Plan) -> None:
    text = plan.show()
    assert text.startswith("megatron: a plan for a mesh of x=2, y=2.")
    assert "starts with" in text
    assert "Arguments" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "Full steps measured on fresh rounds" in planned().show()


def test_report_writes_the_page(plan: Plan, tmp_path: Path) -> None:
    planned().report(tmp_path / "mine.html")
    assert "over 4 devices</h1>" in (tmp_path / "mine.html").read_text()
    plan.report(tmp_path / "template.html")  # a plan that was not measured has one, too
    assert "megatron" in (tmp_path / "template.html").read_text()


def test_place_says_what_is_wrong_with_an_argument(plan: Plan) -> None:
    params, x, y = mlp_args()
    with pytest.raises(
        CfpError, match=r"The step has no argument `batch`: it takes params, x, y\."
    ):
        plan.place_argument("batch", x)
    with pytest.raises(CfpError, match=r"`params\['bias'\]` and 1 more is missing: the plan is"):
        plan.place({"up": params["up"]}, x, y)
    with pytest.raises(CfpError, match=r"has no argument `params\['more'\]`: leave it out"):
        plan.place({**params, "more": x}, x, y)


def test_names_that_begin_alike_are_told_apart() -> None:
    paths = ["w", "w_sum['a']", "w.b", "w['c']", "args[1]", "args[10]", "args[1][0]"]
    assert parts_of("w", paths) == {"w", "w.b", "w['c']"}
    assert parts_of("args[1]", paths) == {"args[1]", "args[1][0]"}
