"""What is measured of a chosen plan, and of one device alone beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import cfp
from cfp.plan import Plan, Predicted
from cfp.planning.audit import NO_TIME, confirm
from cfp.profile import Effort
from cfp.profile.api import Manner, open_campaign
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.full_step import ALONE
from cfp.profile.programs.machine import Machine
from tests.planning.test_planner import args, step
from tests.profile.cases import mesh


@pytest.fixture(scope="module")
def plan() -> Plan:
    return cfp.templates.data_parallel(step, *args(), mesh=mesh((4,)))


def confirmed(tmp_path: Path, plan: Plan, **given: Any) -> dict[str, Any]:
    where = mesh(plan.mesh_shape)
    with open_campaign(
        where, cache_dir=tmp_path, isolate=False, manner=Manner(effort=Effort())
    ) as campaign:
        return confirm(campaign, {"chosen": plan}, **{"takes_s": 1.0, "limit": None, **given})


def test_one_device_alone_runs_beside_the_plan(tmp_path: Path, plan: Plan) -> None:
    """It runs on as many rounds, and holds all of the arguments."""
    found = confirmed(tmp_path, plan)
    assert list(found) == ["chosen", ALONE]
    assert len(found["chosen"].runs_s) == len(found[ALONE].runs_s) >= ROUNDS
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(args()))
    assert found[ALONE].memory_bytes > held


def test_one_that_is_clearly_slower_is_given_up(tmp_path: Path, plan: Plan) -> None:
    found = confirmed(tmp_path, plan, takes_s=1e-9)
    assert found[ALONE].why_not().startswith("not run: given up as clearly slower, at ")
    assert found[ALONE].measured_s is None
    assert len(found["chosen"].runs_s) >= ROUNDS


@pytest.mark.parametrize(
    ("limit", "platform", "said"),
    [
        (10, "cpu", "not run: its arguments need "),
        (None, "gpu", "not run: it would compute about 4 times as long"),
    ],
)
def test_why_it_is_not_tried(
    tmp_path: Path,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    limit: Any,
    platform: str,
    said: str,
) -> None:
    """Its arguments do not fit, or devices with cores of their own would compute too much."""
    predicted = replace(plan, predicted=Predicted(1.0, 1.0, 0.0, 1))
    of = Machine.of
    monkeypatch.setattr(Machine, "of", staticmethod(lambda *m: replace(of(*m), platform=platform)))
    monkeypatch.setattr(Campaign, "_wave", lambda *_, **__: None)  # nothing runs
    found = confirmed(tmp_path, predicted, limit=limit)
    assert found[ALONE].why_not().startswith(said)
    assert found["chosen"].why_not() == f"not run: {NO_TIME}"


def test_more_than_the_limit_when_compiled(tmp_path: Path, plan: Plan) -> None:
    needs = confirmed(tmp_path, plan)[ALONE].memory_bytes
    found = confirmed(tmp_path, plan, limit=needs - 1)
    assert found[ALONE].why_not().endswith("more than the memory limit")


def test_a_mesh_of_one_device_is_one_device_alone(tmp_path: Path) -> None:
    single = cfp.templates.data_parallel(step, *args(), mesh=mesh((1,)))
    assert list(confirmed(tmp_path, single)) == ["chosen"]
