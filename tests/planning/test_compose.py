"""The problem that is searched says what the measurements say, of every plan."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import jax
import numpy as np
import pytest

from cfp.analysis import Analysis, analyze
from cfp.models import config, make_step
from cfp.profile import Option, Profile, SegmentProfile
from cfp.search.compose import Composition, compose
from tests.planning.invented import invented_profile
from tests.profiling.cases import CASES, model


def choices(composition: Composition, count: int = 20) -> list[tuple[int, ...]]:
    draw = random.Random(1)
    return [
        tuple(draw.randrange(len(options)) for options in composition.options) for _ in range(count)
    ]


def seconds(
    analysis: Analysis, profile: Profile, composition: Composition, choice: tuple[int, ...]
) -> float:
    """By the definition: Σ segments + Σ crossings."""
    options = composition.chosen(choice)
    total = sum(
        profile.segments[segment.kind].costs[option].time_s
        for segment, option in zip(analysis.segments, options, strict=True)
    )
    for crossing in profile.crossings:
        source, target = options[crossing.source], options[crossing.target]
        found = profile.resharding_s(crossing.boundary, source, target)
        total += math.inf if found is None else crossing.times * found
    return total


@pytest.mark.parametrize("name", CASES)
def test_the_time_of_a_plan_is_the_sum_of_what_was_measured(name: str) -> None:
    analysis = CASES[name]()
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    composition.problem.check()
    for choice in choices(composition):
        expected = seconds(analysis, profile, composition, choice)
        assert composition.problem.time_s(choice) == pytest.approx(expected, rel=1e-12)


def test_occurrences_of_a_segment_share_what_is_known_of_it() -> None:
    analysis = model("gpt", layers=4)
    composition = compose(analysis, invented_profile(analysis))
    layers = [i for i, kind in enumerate(composition.kinds) if composition.kinds.count(kind) > 1]
    assert len({id(composition.problem.nodes[i]) for i in layers}) == 1
    between = [composition.problem.edges[i, i + 1] for i in layers[:-1]]
    assert len({id(edge) for edge in between}) == 1


def test_segments_that_are_far_apart_may_depend_on_each_other() -> None:
    analysis = CASES["encoder_decoder"]()
    composition = compose(analysis, invented_profile(analysis))
    assert any(j - i > 1 for i, j in composition.problem.edges)


def test_a_resharding_that_does_not_run_excludes_the_pair() -> None:
    analysis = model("gpt", layers=4)
    profile = replace(invented_profile(analysis), reshardings={})
    composition = compose(analysis, profile)
    for choice in choices(composition):
        expected = seconds(analysis, profile, composition, choice)
        assert composition.problem.time_s(choice) == pytest.approx(expected)
    assert any(np.isinf(edge).any() for edge in composition.problem.edges.values())


def test_options_that_are_not_allowed_are_left_out() -> None:
    analysis = model("gpt", layers=4)
    profile = invented_profile(analysis)
    first = next(iter(profile.segments[1].costs))
    composition = compose(analysis, profile, lambda at, option: at != 2 or option == first)
    assert composition.options[2] == (first,)
    assert len(composition.options[1]) > 1


@pytest.mark.parametrize("donates", [True, False])
def test_what_the_step_does_not_donate_it_has_twice(donates: bool) -> None:
    step, args = make_step(config("gpt"), abstract=True)
    jitted = jax.jit(step, donate_argnums=0 if donates else ())
    analysis = analyze(jitted, *args, mesh_shape=(4,))
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    for segment, needs in zip(analysis.segments, composition.needs, strict=True):
        found = profile.segments[segment.kind]
        for option, stored in zip(composition.options[segment.index], needs.stored, strict=True):
            counted = found.costs[option].memory.stored_bytes
            assert stored == counted + (0 if donates else training_state_bytes(found, option))


def test_an_argument_that_two_segments_read_counts_at_its_home() -> None:
    """BERT's head reads the embedding's table."""
    analysis = CASES["bert"]()
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    head = len(analysis.segments) - 1
    found = profile.segments[analysis.segments[head].kind]
    shared = [
        c.boundary for c in profile.crossings if c.target == head and c.boundary.what == "argument"
    ]
    assert shared
    for option, stored in zip(found.costs, composition.needs[head].stored, strict=True):
        less = 0
        for boundary in shared:
            layout = boundary.target.layout(found.layouts[option])
            parts = 4 if layout != (None,) else 1
            less += math.prod(boundary.shape) * np.dtype(boundary.dtype).itemsize // parts
        twice = training_state_bytes(found, option)  # this step does not donate
        assert stored == found.costs[option].memory.stored_bytes + twice - less


@pytest.mark.parametrize("name", CASES)
def test_the_problem_bounds_the_memory_of_every_plan(name: str) -> None:
    analysis = CASES[name]()
    composition = compose(analysis, invented_profile(analysis))
    for choice in choices(composition):
        exactly = composition.memory_bytes(choice)
        assert exactly <= composition.problem.memory_bytes(choice)


def test_a_loop_keeps_all_it_has() -> None:
    """It might be one over micro-batches, which has its sums of gradients from the start."""
    analysis = CASES["llama"]()
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    loops = [s for s in analysis.segments if len(profile.segments[s.kind].kind.cuts) > 1]
    assert loops
    for segment in loops:
        needs = composition.needs[segment.index]
        assert not needs.activations.any()
        assert not needs.gradients.any()


def training_state_bytes(found: SegmentProfile, option: Option) -> int:
    """On one device of four."""
    total = 0
    for cut, layouts in zip(found.kind.cuts, found.layouts[option], strict=True):
        for position in cut.goes_round.values():
            value = cut.graph.values[cut.graph.inputs[position]]
            parts = 4 if layouts.inputs[position] != (None,) else 1
            total += math.prod(value.shape) * value.dtype.itemsize // parts
    return total
