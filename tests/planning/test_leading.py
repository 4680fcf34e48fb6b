"""Levels of recomputation are measured of leading options, where they may change the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import cfp
from cfp.errors import CfpError
from cfp.layouts.state import State
from cfp.plan import Plan
from cfp.planning.choose import Chooser
from cfp.planning.leading import leading_plans
from cfp.profile import Effort, Option, Profile
from cfp.profile.explore.keeps import Leading
from cfp.profile.explore.scope import Recompute
from cfp.profile.runners.job import Memory
from cfp.search import Solver
from cfp.search.compose import compose
from cfp.segments.keep import Keep
from tests.plan.test_recompute import arguments, plan_with, step
from tests.planning.invented import invented_profile
from tests.profile.cases import mesh, model
from tests.profile.fake_runner import MEMORY, Clock, FakeRunner, clock, stored
from tests.profile.steps import analysed, measured

__all__ = ["clock"]
EFFORT = Effort(warmups=1, repeats=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def planned(store: Path, **options: Any) -> Plan:
    given = {"isolate": False, "effort": EFFORT, "audit": 0, "cache_dir": store, **options}
    return cfp.plan(step, *arguments(), mesh=mesh((2,)), **given)


@pytest.fixture(scope="module")
def free(store: Path) -> tuple[Plan, set[str]]:
    """The plan without a limit, and the programs that were measured for it."""
    plan = planned(store)
    return plan, {one.name for one in stored(store).values()}


def test_without_a_limit_nothing_more_is_measured(free: tuple[Plan, set[str]]) -> None:
    plan, programs = free
    assert programs
    assert not any("keeps" in name for name in programs)
    assert {segment.keep for segment in plan.segments} == {Keep.AS_WRITTEN}
    assert not any("keeps" in point.splits for point in plan.frontier)


def test_a_limit_that_binds_makes_some_segments_compute_again(
    store: Path, free: tuple[Plan, set[str]]
) -> None:
    least = plan_with(Keep.INPUTS).memory_bytes()
    limit = (least + plan_with(Keep.AS_WRITTEN).memory_bytes()) // 2
    plan = planned(store, memory_limit=limit)
    assert plan.memory_bytes() <= limit
    assert {Keep.CONTRACTIONS, Keep.INPUTS} & {segment.keep for segment in plan.segments}
    assert any("keeps" in point.splits for point in plan.frontier)
    cfp.verify(step, *arguments(), plan=plan)
    with pytest.raises(CfpError, match="No plan fits"):
        planned(store, memory_limit=least, recompute="as written")


def test_levels_are_measured_where_no_plan_needs_as_little_as_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit does not bind, so that no level is measured. Then the step is found to need more
    than predicted, and what fits is known: with so much less the limit binds."""
    limit = 2 * plan_with(Keep.AS_WRITTEN).memory_bytes()
    select, measured = Chooser.select, list[set[str]]()

    def nothing_fits_at_first(
        chooser: Chooser, proposals: Any, allowance: int, *, last: bool
    ) -> int | None:
        measured.append({one.name for one in stored(tmp_path).values()})
        if len(measured) == 1:
            return plan_with(Keep.INPUTS).memory_bytes()
        return select(chooser, proposals, allowance, last=last)

    monkeypatch.setattr(Chooser, "select", nothing_fits_at_first)
    assert planned(tmp_path, memory_limit=limit).memory_bytes() <= limit
    first, second = measured
    assert not any("keeps" in name for name in first)
    assert any("keeps" in name for name in second)


def checkpointed(w: Any, x: Any) -> Any:
    """One layer that its author checkpointed."""

    @jax.checkpoint
    def layer(w: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w[0]) @ w[1])

    value, grads = jax.value_and_grad(lambda w: (layer(w) ** 2).mean())(w)
    return jax.tree.map(lambda a, b: a - 0.1 * b, w, grads), value


def test_who_decides_on_a_checkpoint(tmp_path: Path) -> None:
    """Keeping all is measured unless the step decides; with "none" it is the only choice."""
    args = ((jnp.ones((8, 16)), jnp.ones((16, 8))), jnp.ones((32, 8)))
    found = {}
    for word in ("as written", "auto", "none"):
        given = {"isolate": False, "effort": EFFORT, "audit": 0, "cache_dir": tmp_path}
        plan = cfp.plan(checkpointed, *args, mesh=mesh((2,)), recompute=word, **given)
        cfp.verify(checkpointed, *args, plan=plan)
        found[word] = {segment.keep for segment in plan.segments}
        measured = any("keeps all" in one.name for one in stored(tmp_path).values())
        assert measured is (word != "as written")
    assert found["as written"] == {Keep.AS_WRITTEN}
    assert found["none"] == {Keep.ALL}
    assert found["auto"] <= {Keep.AS_WRITTEN, Keep.ALL}


def test_what_leads_by_memory() -> None:
    analysis = model("gpt", layers=3)
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    solver = Solver(composition.problem)
    fastest = solver.fastest(None)
    assert fastest is not None
    needs = composition.memory_bytes(fastest.plan.choice)
    far = leading_plans(analysis, profile, 10 * needs)
    assert far == leading_plans(analysis, profile, None)
    assert not far.binds
    assert far.fits
    chosen = dict(zip(composition.kinds, composition.chosen(fastest.plan.choice), strict=True))
    assert {kind: [option] for kind, option in chosen.items()} == far.first
    smallest = solver.frontier().plans[0]
    for limit, plan in ((0.9 * needs, None), (1.0, smallest)):
        near = leading_plans(analysis, profile, limit)
        assert near.binds
        within = solver.fastest(int(limit))
        assert near.fits is (within is not None)
        point = plan or (within and within.plan) or smallest
        for kind, option in zip(composition.kinds, composition.chosen(point.choice), strict=True):
            assert option in near.first[kind]
        assert {*near.spare} == {*near.first}


def test_words_for_who_decides() -> None:
    with pytest.raises(CfpError, match='`recompute` is "always": give one of "auto"'):
        cfp.plan(step, *arguments(), mesh=mesh((2,)), recompute="always")
    assert [one.value for one in Recompute] == ["auto", "as written", "none"]
    assert jax.device_count() >= 2


LARGE = Memory(10**9, 0, 0, 0)


def test_with_a_budget_something_fits_before_all_options_are_explored(
    clock: Clock, tmp_path: Path
) -> None:
    """A layer fits only if it keeps less, and the budget ends before the other options of it are
    measured."""
    analysis = model("gpt", layers=3)
    runner = FakeRunner(
        clock,
        {"idle": 0.1, "resharding": 0.2, "segment": 3.0, "chained segment": 6.0},
        memory=lambda name: LARGE if "segment 1:" in name and "keeps" not in name else MEMORY,
    )
    limit = LARGE.total_bytes / 10
    found = measured(
        runner,
        tmp_path,
        analysis=analysis,
        budget_s=240.0,
        full_steps=9,
        exhaustive=False,
        memory_limit_bytes=limit,
        leading=leading_plans,
    )
    assert {"options that may be faster", "what needs less memory"} <= {*found.missing}
    assert leading_plans(analysis, found, limit).fits


def test_where_what_was_expected_to_fit_does_not_the_smallest_is_measured(
    clock: Clock, tmp_path: Path
) -> None:
    """Nothing ever fits, and what is expected to is another option each time. What is expected to
    need least, under no memory at all, is measured beside the second of these."""
    smallest, limit = Option((2, 2), State.FSDP), 1e6
    expected = [Option((1, number)) for number in range(3)]
    runner = FakeRunner(clock, {"idle": 0.1, "segment": 3.0})

    def programs() -> list[str]:
        return [*runner.names.values()]

    def named(profile: Profile, option: Option) -> str:
        return f"segment 0: {profile.segments[0].kind.show(option)}"

    def leading(analysis: cfp.Analysis, profile: Profile, limit_bytes: float | None) -> Leading:
        left = [option for option in expected if named(profile, option) not in programs()]
        first = [smallest] if limit_bytes == 0 else left[:1]
        return Leading(binds=True, fits=False, first={0: first}, spare={})

    found = measured(
        runner,
        tmp_path,
        budget_s=60.0,
        exhaustive=False,
        memory_limit_bytes=limit,
        leading=leading,
    )
    wanted = [named(found, option) for option in (*expected[:2], smallest)]
    assert [name for name in programs() if name.startswith("segment")][1:4] == wanted


@pytest.mark.parametrize("limit", [None, 1e12])
def test_under_a_limit_the_best_plan_is_measured_alone(
    clock: Clock, tmp_path: Path, limit: float | None
) -> None:
    """It tells what each of many in a row needs, however far the limit is."""
    analysis = analysed(layers=5)
    plain, best = "segment 1: batch", "segment 1: batch (fsdp)"
    in_a_row = {f"chained {plain}": 0.9, f"chained {best}": 0.5}
    runner = FakeRunner(clock, {"idle": 0.1, "resharding": 0.2, "segment 1": 0.5, **in_a_row})
    measured(
        runner,
        tmp_path,
        analysis=analysis,
        states=(State.BLOCK, State.FSDP),
        memory_limit_bytes=limit,
        leading=leading_plans,
    )
    assert f"chained {best}" in runner.names.values()
    assert (best in runner.names.values()) is (limit is not None)
