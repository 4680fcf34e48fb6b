"""Plans are kept under the question that they answer."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from cfp import templates
from cfp.analysis import analyze
from cfp.planning.kept import KeptPlans, key_of_plan
from cfp.planning.options import Options
from tests.plan.steps import mesh_of, mlp_args, mlp_step


def test_the_key_is_the_question() -> None:
    def key(step: Any = mlp_step, rows: int = 16, mesh: Any = None, **options: Any) -> str:
        mesh = mesh or mesh_of(2)
        shape = mesh.devices.shape
        analysis = analyze(step, *mlp_args(rows), mesh_shape=shape)
        return key_of_plan(analysis, mesh, Options(**options), None)

    def other(params: Any, x: Any, y: Any) -> Any:
        params, loss = mlp_step(params, x, y)
        return params, loss * 2

    def alike(params: Any, x: Any, y: Any) -> Any:
        return mlp_step(params, x, y)

    renamed = Mesh(mesh_of(2).devices, ("data",))
    found = [
        key(),
        key(other),
        key(jax.jit(mlp_step, donate_argnums=0)),
        key(rows=32),
        key(mesh=mesh_of(4)),
        key(mesh=renamed),
        key(budget=5),
        key(memory_limit="1GiB"),
        key(pins={"x": PartitionSpec("x")}),
        key(exhaustive=True),
    ]
    assert len(set(found)) == len(found)
    assert key(alike) == found[0], "what it does counts, not what it is called"
    assert key(budget="5s") == key(budget=5)
    assert key(cache_dir="elsewhere", isolate=False) == found[0]


def test_pruning(tmp_path: Path) -> None:
    kept = KeptPlans.beside(tmp_path)
    assert (kept.files(), kept.prune(None)) == ([], 0)
    plan = templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2))
    for name in ("old", "new"):
        kept.keep(name, plan)
    os.utime(kept.path("old"), (0, time.time() - 100))
    assert kept.prune(older_than_s=50) == 1
    assert kept.files() == [kept.path("new")]
    assert kept.prune(None) == 1
