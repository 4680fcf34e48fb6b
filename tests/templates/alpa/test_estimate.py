"""Alpa's cost of plans that are not Alpa's."""

from __future__ import annotations

import itertools

import pytest

from cfp import analyze
from cfp.models import config, make_step
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.templates.alpa_ilp import estimate_alpa, solve_alpa


@pytest.fixture(scope="module")
def layer() -> Kind:
    step, args = make_step(config("gpt"), abstract=True)
    return find_kinds(analyze(step, *args, mesh_shape=(4,)))[1]


def test_of_alpas_own_plan_it_is_what_alpa_says(layer: Kind) -> None:
    cut = layer.extracts[0]
    known = {"parameters": cut.blocks.parameters, "feedback": cut.feedback}
    solution = solve_alpa(cut.graph, (4,), **known)
    assert estimate_alpa(cut.graph, (4,), solution.layouts, **known) == pytest.approx(solution.cost)


def test_no_plan_is_cheaper_than_alpas_and_most_differ(layer: Kind) -> None:
    cut = layer.extracts[0]
    known = {"parameters": cut.blocks.parameters, "feedback": cut.feedback}
    best = solve_alpa(cut.graph, (4,), **known).cost
    combos = list(itertools.product(range(3), repeat=4))[::7]
    costs = [
        estimate_alpa(cut.graph, (4,), layer.layouts(Option(combo))[0], **known) for combo in combos
    ]
    assert min(costs) >= best - 1e-6
    assert len({round(cost, 3) for cost in costs}) > len(costs) / 2
