"""The Alpa template where Alpa's own tests do not reach: resharding, refusals, other meshes."""

from __future__ import annotations

import math

import jax.numpy as jnp
import pytest

from cfp.errors import CfpError
from cfp.templates.alpa_ilp import AlpaOptions, solve_alpa
from cfp.templates.alpa_ilp.cost import Cluster, resharding
from cfp.trace import trace

from .solving import check, kinds, solve
from .steps import floats, mlp


def test_resharding_costs_are_alpas() -> None:
    one = Cluster((4,), (1.0,), (1.0,))
    assert resharding(one, 4000, (None,), (0,)) == (0.0, ())
    assert resharding(one, 4000, (0,), (None,))[0] == pytest.approx(3001.1)
    assert resharding(one, 4000, (0,), (1,))[0] == pytest.approx(1501.001)
    two = Cluster((2, 2), (1.0, 1.0), (1.0, 0.1))
    assert resharding(two, 4000, (0, 1), (0, None))[0] == pytest.approx(101.1 + 0, abs=1)
    assert math.isinf(resharding(two, 4000, (0, None), (1, None))[0])
    assert math.isinf(resharding(two, 4000, (0, None), (None, 0))[0])
    flat = resharding(two, 4000, (0, 0), (0, 1))
    assert [move.kind for move in flat[1]] == ["all-to-all"]


def test_data_parallel_cannot_be_forced_on_two_axes() -> None:
    with pytest.raises(CfpError, match="force_data_parallel"):
        solve(mlp(2, 32, 32), (2, 2), force_data_parallel=True)


def test_opaque_operations_are_replicated() -> None:
    graph = trace(lambda x, y: jnp.linalg.cholesky(x @ x.T) @ y, floats(8, 8), floats(8, 8))
    assert graph.opaque()
    solution = solve_alpa(graph, (4,), parameters=frozenset())
    check(graph, (4,), solution)


def test_where_everything_is_forbidden_it_relents() -> None:
    graph = trace(lambda x: jnp.sort(x), floats(8))
    options = AlpaOptions(allow_all_gather=False, allow_replicated_parameters=False)
    solution = solve_alpa(graph, (4,), parameters=frozenset(), options=options)
    assert solution.relented
    assert solution.cost == pytest.approx(25.1)
    assert kinds(solution) == {"all-gather"}


@pytest.mark.parametrize("mesh", [(1,), (2, 2, 2)])
def test_other_meshes(mesh: tuple[int, ...]) -> None:
    _, solution = solve(mlp(3, 32, 32), mesh)
    assert bool(solution.communications) == (mesh != (1,))
