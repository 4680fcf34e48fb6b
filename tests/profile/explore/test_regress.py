"""The model of unmeasured combinations: its covariances are those of the effects it says it has."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.profile.explore.combos import Combo, Points
from cfp.profile.explore.effects import Effects, covariances
from cfp.profile.explore.regress import at_rates, fit, fit_rates


def points(rows: list[Combo]) -> Points:
    return Points(np.array(rows), np.zeros((len(rows), 0)))


def effects_in_common(combo: Combo, effects: Effects) -> tuple[Counter[object], Counter[object]]:
    """Which effects act on a combination whichever axis they stand on, and how often."""
    axes = effects.axes
    unary = Counter[object]((i // axes, split) for i, split in enumerate(combo))
    paired = Counter[object]()
    for i, j in effects.pairs:
        splits = (combo[i], combo[j])
        key = frozenset(splits) if i // axes == j // axes else splits
        paired[i // axes, j // axes, key] += 1
    return unary, paired


@st.composite
def cases(draw: st.DrawFn) -> tuple[Effects, list[Combo]]:
    axes, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    within = [
        (b * axes + i, b * axes + j)
        for b in range(blocks)
        for i, j in itertools.combinations(range(axes), 2)
    ]
    between = [
        (i * axes + axis, j * axes + axis)
        for i, j in itertools.combinations(range(blocks), 2)
        for axis in range(axes)
    ]
    rows = draw(st.lists(st.tuples(*[st.integers(0, 2)] * (axes * blocks)), min_size=2, max_size=6))
    return Effects(tuple(within + between), axes), rows


@settings(max_examples=60, deadline=None)
@given(cases())
def test_common_effects_are_counted_wherever_they_stand(
    case: tuple[Effects, list[Combo]],
) -> None:
    effects, rows = case
    parts = covariances(points(rows), points(rows), effects)
    for (x, left), (y, right) in itertools.product(enumerate(rows), repeat=2):
        both = zip(effects_in_common(left, effects), effects_in_common(right, effects), strict=True)
        unary, paired = (sum(a[key] * b[key] for key in a) for a, b in both)
        assert parts[3, x, y] == pytest.approx(unary / len(left))
        assert parts[4, x, y] == pytest.approx(paired / max(1, len(effects.pairs)))


def test_on_one_axis_nothing_is_common_but_the_effects_themselves() -> None:
    rows = points(list(itertools.product(range(3), repeat=3)))
    parts = covariances(rows, rows, Effects(((0, 1), (1, 2))))
    assert np.array_equal(parts[3], parts[0])
    assert np.array_equal(parts[4], parts[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(30, 60), st.integers(0, 999))
def test_rates_are_found(kinds: int, many: int, seed: int) -> None:
    """What counts take is found from times that they make up, but for what they are held."""
    rng = np.random.default_rng(seed)
    counts = 10.0 ** rng.integers(-3, 9, kinds) * rng.uniform(1, 10, (many, kinds))
    rates = rng.uniform(0, 1, kinds + 1) / np.append(counts.mean(0), 1)
    times = counts @ rates[:-1] + rates[-1]
    found = fit_rates(counts, times)
    assert (found >= 0).all()
    counted = Points(np.zeros((many, 1), dtype=int), counts)
    assert at_rates(counted, found) == pytest.approx(times, rel=0.1)


def test_what_is_slow_for_no_reason_that_counts_bends_rates_little() -> None:
    errors = []
    for seed in range(20):
        counts = np.random.default_rng(seed).uniform(1, 10, (8, 2))
        times = counts @ (0.1, 0.2) + 0.3
        slow = times * np.where(np.arange(8) == 3, 4, 1)
        counted = Points(np.zeros((8, 1), dtype=int), counts)
        found = at_rates(counted, fit_rates(counts, slow)) / times
        errors.append(np.delete(np.abs(found - 1), 3).mean())
    assert np.mean(errors) < 0.03


def test_rates_of_one_time_are_equal_shares() -> None:
    assert fit_rates(np.array([[3.0, 300.0]]), np.array([0.9])) == pytest.approx([0.1, 0.001, 0.3])
    assert fit_rates(np.zeros((2, 0)), np.ones(2)).tolist() == [0]


def test_one_axis_tells_of_the_other() -> None:
    """Two blocks on two axes, where only the second axis was varied: the first is alike."""
    effects = Effects(((0, 1), (2, 3), (0, 2), (1, 3)), axes=2)
    cost = {0: 1.0, 1: 1.3, 2: 1.9}

    def time_s(combo: Combo) -> float:
        return sum(cost[split] for split in combo)

    seen: list[Combo] = [(0, a, 0, b) for a, b in itertools.product(range(3), repeat=2)]
    times = np.array([time_s(combo) for combo in seen])
    model = fit(points(seen), times, np.zeros(len(seen), dtype=bool), effects, np.zeros(1))
    asked: list[Combo] = [(2, 0, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0)]
    mean, _ = model.relative(*model.moments(points(asked)))
    assert mean[0] > mean[1] + 0.01
    assert mean[1] > mean[2] + 0.005
