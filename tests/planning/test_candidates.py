"""Which plans are run as full steps: the best prediction, and others that may be faster."""

from __future__ import annotations

from dataclasses import replace

from cfp.candidates import Candidates
from cfp.layouts.state import State
from cfp.models import config, make_step
from cfp.profile import Option
from tests.planning.invented import invented_profile
from tests.profiling.cases import mesh, model

COLUMNS, ROWS = (1, 1, 1, 1), (0, 0, 0, 0)
LAYER = 1


def candidates(layer_s: dict[Option, float]) -> Candidates:
    """Of a GPT whose layers take most of the time, with four options of embedding and head."""
    analysis = model("gpt", layers=4)
    assert len(analysis.distinct_segments[LAYER].occurrences) == 4
    profile = invented_profile(analysis, times_s={LAYER: layer_s})
    profile = replace(profile, reshardings=dict.fromkeys(profile.reshardings, 1e-6))
    step, _ = make_step(config("gpt", layers=4), abstract=True)
    return Candidates(step, analysis, mesh((4,)), profile, pins={}, pinned={}, sequence=False)


def layers(found: Candidates, count: int, limit: int | None = None) -> list[set[Option]]:
    """The options of the layers in each of the plans."""
    kinds = found.composition.kinds
    return [
        {option for kind, option in zip(kinds, one.options, strict=True) if kind == LAYER}
        for one in found.best(limit, count)
    ]


def test_they_split_the_layers_in_other_ways() -> None:
    split, other = Option(COLUMNS), Option(ROWS)
    sharded = Option(COLUMNS, State.FSDP)
    found = candidates({sharded: 0.030, split: 0.031, other: 0.032})
    assert layers(found, 3) == [{sharded}, {other}, {split}]
    assert found.best(None, 3)[0].point == found.solve(None).best
    assert layers(found, 1) == [{sharded}]


def test_where_no_other_way_is_near_they_differ_in_anything() -> None:
    fast, slow = Option(COLUMNS), Option(ROWS)
    assert layers(candidates({fast: 0.03, slow: 0.09}), 3) == [{fast}] * 3


def test_none_where_nothing_fits() -> None:
    assert candidates({Option(ROWS): 0.03}).best(1, 3) == []
