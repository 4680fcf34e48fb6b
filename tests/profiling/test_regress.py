"""The model of unmeasured combinations: its covariances are those of the effects it says it has."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.profile.regress import Combo, Effects, Points, covariances, fit


def points(rows: list[Combo]) -> Points:
    return Points(np.array(rows), np.zeros(len(rows)))


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
        assert parts[4, x, y] == pytest.approx(unary / len(left))
        assert parts[5, x, y] == pytest.approx(paired / max(1, len(effects.pairs)))


def test_on_one_axis_nothing_is_common_but_the_effects_themselves() -> None:
    rows = points(list(itertools.product(range(3), repeat=3)))
    parts = covariances(rows, rows, Effects(((0, 1), (1, 2))))
    assert np.array_equal(parts[4], parts[0])
    assert np.array_equal(parts[5], parts[1])


def test_one_axis_tells_of_the_other() -> None:
    """Two blocks on two axes, where only the second axis was varied: the first is alike."""
    effects = Effects(((0, 1), (2, 3), (0, 2), (1, 3)), axes=2)
    cost = {0: 1.0, 1: 1.3, 2: 1.9}

    def time_s(combo: Combo) -> float:
        return sum(cost[split] for split in combo)

    seen: list[Combo] = [(0, a, 0, b) for a, b in itertools.product(range(3), repeat=2)]
    times = np.array([time_s(combo) for combo in seen])
    model = fit(points(seen), times, np.zeros(len(seen), dtype=bool), effects)
    asked: list[Combo] = [(2, 0, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0)]
    mean, _ = model.relative(*model.moments(points(asked)))
    assert mean[0] > mean[1] + 0.01
    assert mean[1] > mean[2] + 0.005
