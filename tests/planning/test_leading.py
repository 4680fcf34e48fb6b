"""Levels of recomputation are measured of leading options, where they may change the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

import cfp
from cfp.errors import CfpError
from cfp.plan import Plan
from cfp.planning import leading
from cfp.planning.leading import leading_plans
from cfp.profile import Effort
from cfp.profile.explore.scope import Recompute
from cfp.search import Solver
from cfp.search.compose import compose
from cfp.segments.keep import Keep
from tests.plan.test_recompute import arguments, plan_with, step
from tests.planning.invented import invented_profile
from tests.profile.cases import mesh, model

EFFORT = Effort(warmups=1, repeats=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def planned(store: Path, **options: Any) -> Plan:
    given = {"isolate": False, "effort": EFFORT, "audit": 0, "cache_dir": store, **options}
    return cfp.plan(step, *arguments(), mesh=mesh((2,)), **given)


@pytest.fixture(scope="module")
def free(store: Path) -> Plan:
    return planned(store)


def programs(plan: Plan) -> int:
    assert plan.evidence is not None
    return plan.evidence.programs


def test_without_a_limit_nothing_more_is_measured(store: Path, free: Plan) -> None:
    assert programs(free) == programs(planned(store, recompute="as written"))
    assert {segment.keep for segment in free.segments} == {Keep.AS_WRITTEN}
    assert not any("keeps" in point.splits for point in free.frontier)


def test_a_limit_that_binds_makes_some_segments_compute_again(store: Path, free: Plan) -> None:
    least = plan_with(Keep.INPUTS).memory_bytes()
    limit = (least + plan_with(Keep.AS_WRITTEN).memory_bytes()) // 2
    plan = planned(store, memory_limit=limit)
    assert plan.memory_bytes() <= limit
    assert {Keep.CONTRACTIONS, Keep.INPUTS} & {segment.keep for segment in plan.segments}
    assert any("keeps" in point.splits for point in plan.frontier)
    cfp.verify(step, *arguments(), plan=plan)
    with pytest.raises(CfpError, match="No plan fits"):
        planned(store, memory_limit=least, recompute="as written")


def test_what_leads_by_memory() -> None:
    analysis = model("gpt", layers=3)
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    fastest = Solver(composition.problem).fastest(None)
    assert fastest is not None
    needs = composition.memory_bytes(fastest.plan.choice)
    far = leading_plans(analysis, profile, 10 * needs)
    near = leading_plans(analysis, profile, needs)
    assert not far.binds
    assert near.binds
    assert not leading_plans(analysis, profile, None).binds
    for kind, options in far.options.items():
        assert (
            options == list(near.options[kind])[: len(options)] or options[0] in near.options[kind]
        )
        assert len(near.options[kind]) <= leading.MOST
    chosen = dict(zip(composition.kinds, composition.chosen(fastest.plan.choice), strict=True))
    assert all(chosen[kind] in options for kind, options in near.options.items())


def test_words_for_who_decides() -> None:
    with pytest.raises(CfpError, match='`recompute` is "always": give one of "auto"'):
        cfp.plan(step, *arguments(), mesh=mesh((2,)), recompute="always")
    assert [one.value for one in Recompute] == ["auto", "as written", "none"]
    assert jax.device_count() >= 2
