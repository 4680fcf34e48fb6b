"""From an unmodified step to a plan, for real: programs compiled and run on virtual devices."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import cfp
from cfp import planner
from cfp.plan import Plan
from cfp.plan.evidence import FailedProgram
from cfp.planning import options
from cfp.planning.options import Given, Options
from cfp.profile import Effort
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.confidence import EQUIVALENT
from cfp.profile.measure.full_step import ALONE
from cfp.profile.measure.store import Store
from tests.profile.cases import mesh

EFFORT = Effort(warmups=1, repeats=5)


def step(params: Any, momentum: Any, x: Any) -> Any:
    """Four layers: the first, two alike, the last."""

    def loss(params: Any) -> Any:
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda w, m: w - 0.1 * m, params, momentum), momentum, value


def args() -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    params = [jnp.asarray(random.normal(0, 0.1, (64, 64)), jnp.float32) for _ in range(4)]
    return params, jax.tree.map(jnp.zeros_like, params), jnp.ones((16, 64))


def planned(folder: Path, where: Mesh | None = None, **options: Any) -> Plan:
    where = mesh((4,)) if where is None else where
    given = {"isolate": False, "effort": EFFORT, "cache_dir": folder, **options}
    return cfp.plan(step, *args(), mesh=where, **given)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that `plan` was made with."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def plan(measured: Path) -> Plan:
    return planned(measured, beside=["data_parallel", "fsdp"])


@pytest.fixture
def folder(plan: Plan, measured: Path, tmp_path: Path) -> Path:
    """A copy of it: what one test measures is nothing to the next, in whatever order they run."""
    return shutil.copytree(measured, tmp_path / "store")


def test_the_plan_computes_what_the_step_computes(plan: Plan) -> None:
    cfp.verify(step, *args(), plan=plan)
    step_p = plan.jit(step)
    assert jnp.allclose(step_p(*plan.place(*args()))[2], step(*args())[2])


def test_what_does_not_run_is_in_the_plan(folder: Path) -> None:
    """Recorded as failed by an earlier run, it is left out, and the plan says so."""
    with Store.open(folder) as store:
        names = {one.name: one for one in store.entries() if one.name.startswith("segment ")}
        name = max(names)
        document = {**names[name].document, "failed": "the worker crashed: on purpose"}
        store.put(replace(names[name], document=document))
    evidence = planned(folder, audit=False).evidence
    assert evidence is not None
    assert evidence.failed == (FailedProgram(name, "the worker crashed: on purpose", True),)


def test_it_says_what_it_expects_and_what_it_saw(plan: Plan) -> None:
    predicted, evidence = plan.predicted, plan.evidence
    assert predicted is not None
    assert evidence is not None
    assert predicted.time_s == pytest.approx(predicted.compute_s + predicted.communication_s)
    names = {found.name for found in evidence.steps}
    assert names == {"predicted 1", "predicted 2", "predicted 3"}
    chosen, ours = evidence.steps[0], evidence.confirmed[0]
    assert [found.name for found in evidence.confirmed] == [
        chosen.name,
        "data_parallel",
        "fsdp",
        ALONE,
    ]
    assert chosen.time_s <= EQUIVALENT * min(found.time_s for found in evidence.steps)
    assert chosen.runs_s[:6] != ours.runs_s[:6], "other rounds"
    assert all(len(found.runs_s) >= ROUNDS for found in evidence.confirmed if found.ran)
    assert ours.low_s is not None
    assert ours.high_s is not None
    assert ours.low_s <= ours.time_s <= ours.high_s
    assert ours.memory_bytes == plan.memory_bytes(), "the compiler's figure"
    assert len(evidence.segments) == 4
    shown_s = sum(segment.time_s for segment in evidence.segments) + evidence.start_s
    assert shown_s == pytest.approx(predicted.time_s)
    assert evidence.seed == 0
    assert evidence.memory_limit_bytes is None


def test_the_frontier_trades_memory_for_time(plan: Plan) -> None:
    memory = [point.memory_bytes for point in plan.frontier]
    times = [point.time_s for point in plan.frontier]
    assert memory == sorted(set(memory))
    assert times == sorted(set(times), reverse=True)
    assert all(point.splits.startswith("0") for point in plan.frontier)


def test_the_same_measurements_give_the_same_plan(folder: Path, plan: Plan) -> None:
    again = planned(folder, beside=["data_parallel", "fsdp"])
    assert again.segments == plan.segments
    assert again.arguments == plan.arguments
    assert again.predicted == plan.predicted
    assert plan.evidence is not None
    assert again.evidence is not None
    assert again.evidence.steps == plan.evidence.steps
    assert again.evidence.confirmed == plan.evidence.confirmed
    assert again.evidence.loaded == again.evidence.programs, "nothing was measured anew"


def test_a_saved_plan_keeps_its_evidence(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    loaded = cfp.load(tmp_path / "plan.json", mesh=mesh((4,)))
    assert loaded.evidence == plan.evidence
    assert loaded.frontier == plan.frontier
    assert loaded.bind(step, *args()).evidence == plan.evidence


def test_a_memory_limit_is_kept(folder: Path) -> None:
    split, whole = (
        make(step, *args(), mesh=mesh((4,))).memory_bytes()
        for make in (cfp.templates.fsdp, cfp.templates.data_parallel)
    )
    limit = int(1.1 * split)
    assert limit < whole
    small = planned(folder, memory_limit=limit)
    assert small.memory_bytes() <= limit
    assert small.evidence is not None
    assert small.evidence.memory_limit_bytes == limit
    cfp.verify(step, *args(), plan=small)


def test_nothing_fits(folder: Path) -> None:
    with pytest.raises(cfp.CfpError, match=r"No plan fits 1\.0 KiB per device: the smallest needs"):
        planned(folder, memory_limit="1KiB")


def test_pins_are_kept(folder: Path) -> None:
    pins = {"params.1": PartitionSpec("x", None), "x": PartitionSpec()}  # type: ignore[no-untyped-call]
    pinned = planned(folder, pins=pins, audit=False)
    layouts = {tensor.path: tensor.layout for tensor in pinned.arguments}
    assert layouts["params[1]"] == (0,)
    assert layouts["x"] == (None,)
    cfp.verify(step, *args(), plan=pinned)


def test_without_audit_no_step_runs(folder: Path) -> None:
    quick = planned(folder, audit=False)
    assert quick.evidence is not None
    assert quick.evidence.steps == ()
    assert any("nothing checks the times" in note for note in quick.notes)


def test_two_axes_with_the_batch_outermost(tmp_path: Path) -> None:
    where = mesh((2, 2))
    plan = planned(tmp_path, where, outer_batch=True, audit=1)
    for segment in plan.segments:
        for block in segment.blocks:
            assert block.splits[0] == "batch"
    cfp.verify(step, *args(), plan=plan)


@pytest.mark.parametrize(("audit", "steps"), [(False, 0), (2, 6)])
def test_profiling_knows_how_many_full_steps_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audit: int, steps: int
) -> None:
    class Enough(Exception):
        pass

    def see(analysis: Any, mesh: Any, campaign: Campaign, *_: Any) -> Any:
        budget = campaign.budget
        assert budget.seconds == 60.0
        assert 0 < budget.left_s() < 60.0, "analysing the step took some of it"
        assert budget.choosing + budget.confirming == steps
        assert campaign.runner.ends == campaign.deadline == budget.ends
        raise Enough

    monkeypatch.setattr(planner, "Profiler", see)
    with pytest.raises(Enough):
        planned(tmp_path, budget="1m", audit=audit, beside=["data_parallel", "zero1"])


def test_a_budget_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(
        cfp.CfpError, match=r"The budget ended before segment 0 \(.*\) was measured"
    ):
        planned(tmp_path, budget=0.001)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory_limit": "much"}, "'much' is not an amount of memory"),
        ({"memory_limit": 0}, "`memory_limit` is 0"),
        ({"budget": "soon"}, "'soon' is not a length of time"),
        ({"budget": 0}, "`budget` is 0 s"),
        ({"beside": ["fdsp"]}, "There is no template `fdsp`"),
        ({"pins": {"parms": None}}, "Did you mean"),
    ],
)
def test_bad_input(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(cfp.CfpError, match=said):
        planned(tmp_path, **given)
    assert list(tmp_path.iterdir()) == [], "nothing was started"


def test_the_default_limit_leaves_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options().limit_bytes(mesh((4,))) is None, "CPU devices do not say"
    monkeypatch.setattr(options, "memory_bytes", lambda _: 1000)
    assert Options().limit_bytes(mesh((4,))) == 950
    assert Options(memory_limit="2KiB").limit_bytes(mesh((4,))) == 2048


def test_options_are_named_once_and_have_one_default() -> None:
    assert {one.name for one in fields(Options)} == {*Given.__annotations__}
    with pytest.raises(TypeError, match="unexpected keyword argument 'bugdet'"):
        planned(Path("."), bugdet=1)
