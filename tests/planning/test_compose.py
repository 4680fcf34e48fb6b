"""The problem that is searched says what the measurements say, of every plan."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfp.analysis import Analysis, analyze
from cfp.models import config, make_step
from cfp.profile import Option, Profile, SegmentProfile
from cfp.profile.explore.scope import Scope
from cfp.profile.explore.states import memory_counts
from cfp.profile.measure.ledger import Ledger
from cfp.search.compose import Composition, compose
from tests.planning.invented import invented_profile
from tests.profile.cases import CASES, accumulating, model


def choices(composition: Composition, count: int = 20) -> list[tuple[int, ...]]:
    draw = random.Random(1)
    return [
        tuple(draw.randrange(len(options)) for options in composition.options) for _ in range(count)
    ]


def seconds(
    analysis: Analysis, profile: Profile, composition: Composition, choice: tuple[int, ...]
) -> float:
    """Returns the time by the definition: Σ segments + Σ crossings."""
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


@pytest.mark.parametrize("name", ["encoder_decoder", "llama"])
def test_a_tensor_that_crosses_often_is_resharded_as_often(name: str) -> None:
    """Between segments, either way, and round the loop of one (llama's)."""
    analysis = CASES[name]()
    profile = invented_profile(analysis)
    often = tuple(replace(c, times=2 + i % 3) for i, c in enumerate(profile.crossings))
    ways = {(c.source > c.target) - (c.source < c.target) for c in often}
    assert ways == ({-1, 1} if name == "encoder_decoder" else {-1, 0, 1})
    profile = replace(profile, interfaces=replace(profile.interfaces, crossings=often))
    composition = compose(analysis, profile)
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
            memory = found.costs[option].memory
            counted = memory.stored_bytes + memory.update_bytes
            assert stored == counted + (0 if donates else training_state_bytes(found, option))


def test_an_argument_that_two_segments_read_counts_at_its_home() -> None:
    """BERT's head reads the embedding's table."""
    analysis = CASES["bert"]()
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    head = len(analysis.segments) - 1
    found = profile.segments[analysis.segments[head].kind]
    for option, stored in zip(found.costs, composition.needs[head].stored, strict=True):
        less = away_bytes(profile, head, found, option)
        assert less > 0
        twice = training_state_bytes(found, option)  # this step does not donate
        memory = found.costs[option].memory
        assert stored == memory.stored_bytes + memory.update_bytes + twice - less


def peak_bytes(
    analysis: Analysis, profile: Profile, composition: Composition, choice: tuple[int, ...]
) -> int:
    """Returns the peak by the definition: at every moment of the backward pass, all that is there
    is counted, one by one. Where micro-batches are looped over, their sums are there always, and
    new state only in the end, with what making it takes."""
    options = composition.chosen(choice)
    donated = {analysis.graph.inputs[position] for position in analysis.graph.donated}
    moments = []
    micro = analysis is accumulating()
    for now in range(len(options) + micro):
        held = 0
        for segment, option in zip(analysis.segments, options, strict=True):
            found = profile.segments[segment.kind]
            use = found.costs[option].memory
            held += use.parameter_bytes + use.state_bytes
            again = training_state_bytes(found, option, donated)
            if not micro or now == len(options) or not again:
                held += again + use.update_bytes
            held -= away_bytes(profile, segment.index, found, option)
            held += use.activation_bytes if segment.index <= now < len(options) else 0
            held += use.gradient_bytes if segment.index >= now or micro else 0
            held += use.scratch_bytes if segment.index == now else 0
        moments.append(held)
    graph, homes = analysis.graph, profile.interfaces.homes
    besides = [graph.values[value] for value in graph.inputs if value not in homes]
    return max(moments) + sum(
        math.prod(one.shape) * one.dtype.itemsize for one in besides if one.shape
    )


@pytest.mark.parametrize("name", [*CASES, "accumulating"])
def test_the_memory_of_a_plan_is_the_most_that_is_there_at_once(name: str) -> None:
    """The search counts no less than that."""
    analysis = CASES[name]() if name in CASES else accumulating()
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    for choice in choices(composition):
        exactly = composition.memory_bytes(choice)
        assert exactly == peak_bytes(analysis, profile, composition, choice)
        assert exactly <= composition.problem.memory_bytes(choice)


@pytest.mark.parametrize("name", ["gpt", "bert", "llama"])
def test_memory_counts_where_the_fastest_options_need_more_than_the_limit(name: str) -> None:
    """The same model says so: one byte decides."""
    analysis = CASES[name]()
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    fastest = {
        kind: min(options, key=lambda o: profile.segments[kind].costs[o].time_s)
        for kind, options in zip(composition.kinds, composition.options, strict=True)
    }
    ledger = SimpleNamespace(
        kinds=[found.kind for found in profile.segments],
        interfaces=profile.interfaces,
        layouts=[found.layouts for found in profile.segments],
        ranked=lambda kind: [fastest[kind.index]],
        cost=lambda kind, option: profile.segments[kind.index].costs[option],
    )
    chosen = zip(composition.kinds, composition.options, strict=True)
    needs = composition.memory_bytes([options.index(fastest[kind]) for kind, options in chosen])
    for limit, counts in ((needs, False), (needs - 1, True), (None, False)):
        scope = Scope(memory_limit_bytes=limit)
        assert memory_counts(analysis, cast(Ledger, ledger), scope) is counts


def test_micro_batches_have_their_sums_from_the_start_and_new_state_in_the_end() -> None:
    analysis = accumulating()
    profile = invented_profile(analysis)
    composition = compose(analysis, profile)
    for segment, needs in zip(analysis.segments, composition.needs, strict=True):
        found = profile.segments[segment.kind]
        for n, option in enumerate(composition.options[segment.index]):
            memory = found.costs[option].memory
            assert needs.stored[n] <= memory.stored_bytes + memory.gradient_bytes
            assert needs.renewed[n] == training_state_bytes(found, option) + memory.update_bytes
            assert needs.activations[n] == memory.activation_bytes
            assert needs.gradients[n] == 0


def test_layers_in_a_loop_need_what_others_do() -> None:
    analysis = CASES["llama"]()
    profile = invented_profile(analysis)
    needs = compose(analysis, profile).needs[1]
    memory = [cost.memory for cost in profile.segments[analysis.segments[1].kind].costs.values()]
    assert [*needs.activations] == [use.activation_bytes for use in memory]
    assert [*needs.gradients] == [use.gradient_bytes for use in memory]
    assert not needs.renewed.any()


def training_state_bytes(
    found: SegmentProfile, option: Option, donated: Collection[int] = ()
) -> int:
    """What the step does not donate of it, on one device of four."""
    total = 0
    for cut, layouts in zip(found.kind.extracts, found.layouts[option], strict=True):
        for position in cut.feedback.values():
            if cut.inputs[position] in donated:
                continue
            value = cut.graph.values[cut.graph.inputs[position]]
            parts = 4 if layouts.inputs[position] != (None,) else 1
            total += math.prod(value.shape) * value.dtype.itemsize // parts
    return total


def away_bytes(profile: Profile, segment: int, found: SegmentProfile, option: Option) -> int:
    """The arguments that a segment reads and another is the home of, on one device of four."""
    total = 0
    for crossing in profile.crossings:
        boundary = crossing.boundary
        if crossing.target == segment != crossing.source and boundary.what == "argument":
            layout = boundary.target.layout(found.layouts[option])
            parts = 4 if layout != (None,) else 1
            total += math.prod(boundary.shape) * jnp.dtype(boundary.dtype).itemsize // parts
    return total
