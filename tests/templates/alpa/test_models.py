"""The Alpa template on the four models: solved in time, with layouts that fit."""

from __future__ import annotations

import functools
import math

import pytest

from cfp import models
from cfp.blocks.parameters import find_parameters
from cfp.templates.alpa_ilp import solve_alpa
from cfp.trace import Graph, trace

from .solving import check


@pytest.mark.parametrize("name", ["bert", "gpt", "moe", "llama"])
@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)])
def test_layouts_of_the_models_fit(name: str, mesh: tuple[int, ...]) -> None:
    graph, feedback = model(name)
    solution = solve_alpa(
        graph, mesh, parameters=find_parameters(graph), feedback=feedback, time_limit_s=20.0
    )
    check(graph, mesh, solution)
    assert solution.status == "optimal"
    assert math.isfinite(solution.cost)
    assert solution.seconds < 20.0
    for out, argument in feedback.items():
        assert solution.layouts.outputs[out] == solution.layouts.inputs[argument]
    assert solution.show().startswith("cost ")


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
def test_a_scanned_model(mesh: tuple[int, ...]) -> None:
    step, args = models.make_step(models.config("gpt", layers=3, scan=True), abstract=True)
    graph = trace(step, *args)
    solution = solve_alpa(graph, mesh, parameters=find_parameters(graph), time_limit_s=20.0)
    check(graph, mesh, solution)
    assert {c.times for c in solution.communications} == {1, 3}


@functools.cache
def model(name: str) -> tuple[Graph, dict[int, int]]:
    step, args = models.make_step(models.config(name, layers=2), abstract=True)
    graph = trace(step, *args)
    places = {path.removeprefix("state"): i for i, path in enumerate(graph.input_paths)}
    paths = [path.removeprefix("result[0]") for path in graph.output_paths]
    return graph, {i: places[path] for i, path in enumerate(paths) if path in places}
