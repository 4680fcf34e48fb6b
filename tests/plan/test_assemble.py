"""A plan made of options lies as the options were measured."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cfp.layouts.state import State
from cfp.plan.assemble import assemble_plan
from tests.profiling.cases import CASES, kinds, mesh, random_option


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_every_argument_lies_as_its_home_segment_was_measured(name: str, seed: int) -> None:
    analysis = CASES[name]()
    found = kinds(analysis)
    draw = random.Random(seed)
    options = [
        random_option(found[s.kind], draw.randrange(10**6), draw.choice(list(State)))
        for s in analysis.segments
    ]
    plan = assemble_plan(_step, analysis, mesh((4,)), found, options, name="random")
    checked = 0
    for segment, option in zip(analysis.segments, options, strict=True):
        kind = found[segment.kind]
        if segment.index != analysis.distinct_segments[segment.kind].representative:
            continue  # whose positions are the kind's
        layouts = kind.layouts(option)
        for cut, lie in zip(kind.cuts, layouts, strict=True):
            for position, value in enumerate(cut.inputs):
                if value not in analysis.graph.inputs:
                    continue
                at = analysis.graph.inputs.index(value)
                updated = position in cut.goes_round.values()
                if updated:
                    assert plan.arguments[at].layout == lie.inputs[position], plan.arguments[at]
                    checked += 1
    assert checked > 3


def _step(*args: Any) -> Any:
    raise AssertionError("nothing runs")
