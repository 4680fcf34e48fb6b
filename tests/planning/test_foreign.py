"""Models that are not ours, planned through the public API as their users would."""

from __future__ import annotations

from pathlib import Path

import pytest

import cfp
from cfp.profile import Effort
from tests.foreign import MODELS
from tests.profiling.cases import mesh


@pytest.mark.parametrize("name", ["hf_llama", "equinox"])
def test_planned_end_to_end(name: str, tmp_path: Path) -> None:
    step, args = MODELS[name]()
    plan = cfp.plan(
        step,
        *args,
        mesh=mesh((2,)),
        budget="8s",
        audit=1,
        cache_dir=tmp_path,
        effort=Effort(warmups=1, repeats=3),
    )
    assert plan.predicted is not None
    assert plan.predicted.time_s > 0
    plan.save(tmp_path / "plan.json")
    cfp.verify(step, *args, plan=cfp.load(tmp_path / "plan.json", mesh=mesh((2,))))
