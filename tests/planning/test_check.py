"""A plan is checked against its step: what fits, what differs, and the exit code that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cfp
from cfp import templates
from cfp.cli import main
from cfp.plan import Plan
from cfp.plan.evidence import Evidence, MeasuredStep
from cfp.planning import check as checking
from cfp.planning.compare import ComparedPlan, Comparison
from tests.plan.steps import mesh_of, mlp_args, mlp_step


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan as it comes from a file: with what it sent, needed and took when it was made."""
    made = templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2))
    made.collectives()
    own = MeasuredStep("megatron", None, 0.010, 0.009, 0.011, made.memory_bytes())
    evidence = Evidence(10**9, 0, 0, 1.0, 1, 0, 0.0, (), (), (own,), ())
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    replace(made, evidence=evidence).save(path)
    return cfp.load(path, mesh=mesh_of(2))


def found(checked: cfp.Checked) -> dict[str, bool | None]:
    return {finding.what: finding.fits for finding in checked.findings}


def test_nothing_has_changed(plan: Plan) -> None:
    checked = cfp.check(mlp_step, *mlp_args(), plan=plan)
    assert checked.fits
    assert found(checked) == dict.fromkeys(["step", "environment", "collectives", "memory"], True)
    assert checked.show().count("\n") == 3


def test_another_step(plan: Plan) -> None:
    checked = cfp.check(mlp_step, *mlp_args(rows=32), plan=plan)
    assert not checked.fits
    assert checked.show().startswith("differs  step: The plan is for another step: `x` is ")


def with_evidence(plan: Plan, **changes: Any) -> Plan:
    assert plan.evidence is not None
    (own,) = plan.evidence.steps
    return replace(plan, evidence=replace(plan.evidence, steps=(replace(own, **changes),)))


def test_memory(plan: Plan) -> None:
    assert plan.evidence is not None
    needed = plan.evidence.steps[0].memory_bytes
    assert needed is not None
    less = with_evidence(plan, memory_bytes=needed // 2)
    assert found(cfp.check(mlp_step, *mlp_args(), plan=less))["memory"] is False
    tight = replace(plan, evidence=replace(plan.evidence, memory_limit_bytes=needed - 1))
    assert "above the limit" in cfp.check(mlp_step, *mlp_args(), plan=tight).show()
    unknown = replace(plan, evidence=None)
    assert found(cfp.check(mlp_step, *mlp_args(), plan=unknown))["memory"] is None


def test_collectives(plan: Plan) -> None:
    assert plan.saved_collectives
    first, *others = plan.saved_collectives
    other = replace(plan, saved_collectives=(replace(first, bytes=first.bytes + 4), *others))
    checked = cfp.check(mlp_step, *mlp_args(), plan=other)
    (differs,) = [finding for finding in checked.findings if finding.fits is False]
    assert differs.text.startswith(f"{first.kind} over x is ")
    unknown = replace(plan, saved_collectives=None)
    checked = cfp.check(mlp_step, *mlp_args(), plan=unknown)
    assert checked.fits
    assert found(checked)["collectives"] is None


def test_another_environment_is_noted(plan: Plan) -> None:
    older = replace(plan, environment=replace(plan.environment, jax="0.9.0"))
    checked = cfp.check(mlp_step, *mlp_args(), plan=older)
    assert checked.fits
    assert "jax 0.9.0, here " in checked.show()


@pytest.mark.parametrize(
    ("low_s", "failed", "fits"), [(0.008, None, True), (0.02, None, False), (0.0, "crash", False)]
)
def test_speed(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, low_s: float, failed: str | None, fits: bool
) -> None:
    """The times are made up: what is made of them is not."""
    row = ComparedPlan("plan", time_s=low_s * 1.1, low_s=low_s, failed=failed)
    monkeypatch.setattr(checking, "compare", lambda *_, **__: Comparison(5, (row,)))
    checked = cfp.check(mlp_step, *mlp_args(), plan=plan, measure=True)
    assert found(checked)["speed"] is fits
    assert checked.fits is fits


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    def call(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return call


def test_the_command(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    (tmp_path / "checked_project.py").write_text(
        "from tests.plan.steps import mlp_args, mlp_step\n"
        "def make_step(): return mlp_step, mlp_args()\n"
        "def wider(): return mlp_step, mlp_args(hidden=64)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    file = str(tmp_path / "plan.json")
    replace(plan, saved_collectives=None).save(file)
    code, out, _ = run("check", file, "checked_project:make_step", "--record")
    assert (code, out.count("\n")) == (0, 4)
    assert "none are recorded in the plan" in out
    code, out, _ = run("check", file, "checked_project:make_step", "--measure")
    assert "they are as recorded" in out
    assert out.splitlines()[-1].split()[1] == "speed:"
    assert code == int("differs" in out)  # the recorded time is made up: either may be
    code, out, _ = run("check", file, "checked_project:wider", "--json")
    assert code == 1
    document = json.loads(out)
    assert document["fits"] is False
    assert document["findings"][0]["what"] == "step"
