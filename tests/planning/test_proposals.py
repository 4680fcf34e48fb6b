"""Which plans are run as full steps: the best prediction, and others that may be faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cfp.layouts import Layout
from cfp.layouts.state import State
from cfp.models import config, make_step
from cfp.planning.proposals import Proposals
from cfp.profile import Option
from tests.planning.invented import invented_profile
from tests.profile.cases import mesh, model

COLUMNS, ROWS = (1, 1, 1, 1), (0, 0, 0, 0)
LAYER = 1


def proposals(
    layer_s: dict[Option, float], pinned: Mapping[int, Layout] | None = None
) -> Proposals:
    """Returns proposals for a GPT whose layers take most of the time, with four options of
    embedding and head."""
    analysis = model("gpt", layers=4)
    assert len(analysis.distinct_segments[LAYER].occurrences) == 4
    profile = invented_profile(analysis, times_s={LAYER: layer_s})
    profile = replace(profile, reshardings=dict.fromkeys(profile.reshardings, 1e-6))
    step, _ = make_step(config("gpt", layers=4), abstract=True)
    return Proposals(step, analysis, mesh((4,)), profile, pins={}, pinned=pinned or {})


def layers(found: Proposals, count: int, limit: int | None = None) -> list[set[Option]]:
    """The options of the layers in each of the plans."""
    kinds = found.composition.kinds
    return [
        {option for kind, option in zip(kinds, one.options, strict=True) if kind == LAYER}
        for one in found.best(limit, count)
    ]


def test_they_split_the_layers_in_other_ways() -> None:
    split, other = Option(COLUMNS), Option(ROWS)
    sharded = Option(COLUMNS, State.FSDP)
    found = proposals({sharded: 0.030, split: 0.031, other: 0.032})
    assert layers(found, 3) == [{sharded}, {other}, {split}]
    fastest = found.solver.fastest(None)
    assert fastest is not None
    assert found.best(None, 3)[0].point == fastest.plan
    assert {one.slack_bytes for one in found.best(None, 3)} == {fastest.slack_bytes}
    assert layers(found, 1) == [{sharded}]


def test_where_no_other_way_is_near_they_differ_in_anything() -> None:
    fast, slow = Option(COLUMNS), Option(ROWS)
    assert layers(proposals({fast: 0.03, slow: 0.09}), 3) == [{fast}] * 3


def layer_weight() -> int:
    """The position of a weight of the third layer among the step's arguments."""
    return model("gpt", layers=4).graph.input_paths.index("state.params['layers'][2]['up']")


def test_a_pinned_argument_lies_as_pinned_though_that_is_slower() -> None:
    fast, slow = Option(COLUMNS), Option(ROWS)
    position, whole = layer_weight(), (None,)
    free = proposals({fast: 0.03, slow: 0.09})
    (plan,) = free.best(None, 1)
    assert plan.plan.known("test").layouts.inputs[position] == (1,)
    found = proposals({fast: 0.03, slow: 0.09}, {position: whole})
    assert found.unmet == []
    for limit, count in ((None, 3), (None, 1)):
        for one in found.best(limit, count):
            assert one.plan.known("test").layouts.inputs[position] == whole
    # the segment of the pinned argument alone: its neighbours are free
    (best,) = found.best(None, 1)
    kinds = found.composition.kinds
    chosen = [o for kind, o in zip(kinds, best.options, strict=True) if kind == LAYER]
    assert chosen == [fast, fast, slow, fast]


def test_a_pin_that_nothing_measured_agrees_with_is_named() -> None:
    found = proposals({Option(COLUMNS): 0.03}, {layer_weight(): (0,)})
    assert found.unmet == ["3"]
    assert layers(found, 1) == [{Option(COLUMNS)}]


def test_communication_that_no_trace_tells_is_not_predicted() -> None:
    """The step's time is; what of it is computing is not."""
    found = proposals({Option(ROWS): 0.03})
    fastest = found.solver.fastest(None)
    assert fastest is not None
    best = fastest.plan
    whole = found.make(best).plan.predicted
    assert whole is not None
    assert whole.compute_s is not None
    assert whole.communication_s is not None
    layer = found.profile.segments[LAYER]
    untold = replace(layer.costs[Option(ROWS)], shares=None)
    segments = list(found.profile.segments)
    segments[LAYER] = replace(layer, costs={Option(ROWS): untold})
    found.profile = replace(found.profile, segments=tuple(segments))
    made = found.make(best)
    predicted = made.plan.predicted
    assert predicted is not None
    assert (predicted.compute_s, predicted.communication_s) == (None, None)
    assert predicted.time_s == whole.time_s
    assert sum(s.time_s for s in made.segments) + found.start_s == pytest.approx(predicted.time_s)


def test_none_where_nothing_fits() -> None:
    assert proposals({Option(ROWS): 0.03}).best(1, 3) == []
