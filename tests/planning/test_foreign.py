"""Models that are not ours, planned through the public API as their users would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cfp
from cfp.profile import Effort
from tests.foreign import MODELS
from tests.profiling.cases import mesh


@pytest.mark.parametrize("name", ["hf_llama", "equinox"])
def test_planned_end_to_end(name: str, tmp_path: Path) -> None:
    step, args = MODELS[name]()
    plan = planned(step, args, tmp_path)
    assert plan.predicted is not None
    assert plan.predicted.time_s > 0
    plan.save(tmp_path / "plan.json")
    cfp.verify(step, *args, plan=cfp.load(tmp_path / "plan.json", mesh=mesh((2,))))


def planned(step: Callable[..., object], args: tuple[object, ...], store: Path) -> cfp.Plan:
    """With a budget that ends in the middle of things. On a busy machine it may end before there
    is a plan: then, as one is told to, the same with more."""
    for budget_s in (8, 16, 32):
        try:
            return cfp.plan(
                step,
                *args,
                mesh=mesh((2,)),
                budget=budget_s,
                audit=1,
                cache_dir=store,
                effort=Effort(warmups=1, repeats=3),
            )
        except cfp.CfpError as error:
            told = str(error)
            assert "hat was measured is kept" in told
    raise AssertionError(told)
