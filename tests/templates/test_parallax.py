"""google-parallax as a plan to compare with, where it is installed."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cfp
from cfp.errors import CfpError
from cfp.templates.by_name import make_templates
from cfp.templates.parallax import parallax
from tests.plan.steps import mesh_of, mlp_args, mlp_step, model

installed = pytest.mark.skipif(
    util.find_spec("parallax") is None,
    reason="google-parallax is not installed: pip install 'cfp-jax[parallax]'",
)


@installed
def test_what_it_assigns(tmp_path: Path) -> None:
    mesh = mesh_of(2, 2)
    plan = parallax(mlp_step, *mlp_args(), mesh=mesh)
    assert plan.in_shardings[0]["up"].spec == P(None, "y")
    assert plan.in_shardings[1].spec == P("x")
    assert plan.out_shardings[0] == plan.in_shardings[0], "training state lies as it came"
    cfp.verify(mlp_step, *mlp_args(), plan=plan)
    plan.save(tmp_path / "plan.json")
    again = cfp.load(tmp_path / "plan.json", mesh=mesh)
    _, loss = again.jit(mlp_step)(*mlp_args())
    np.testing.assert_allclose(loss, mlp_step(*mlp_args())[1], rtol=1e-5)


@installed
def test_a_step_that_it_does_not_take_is_said_to_be_so() -> None:
    step, args = model("gpt")
    found = make_templates(["parallax"], step, args, mesh_of(2, 2))
    assert "does not take this step (AssertionError in " in str(found["parallax"])


def test_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CfpError, match="takes a mesh of two axes, not 1"):
        parallax(mlp_step, *mlp_args(), mesh=mesh_of(2))
    for name in ("parallax", "parallax.sharding", "parallax.sharding.auto_shard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CfpError, match=r'not installed: pip install "cfp-jax\[parallax\]"'):
        parallax(mlp_step, *mlp_args(), mesh=mesh_of(2, 2))
