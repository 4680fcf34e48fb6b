"""Counts put together from few: exact where pairs are all there is, near for real segments."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.profile.explore.combos import Array, Combo
from cfp.profile.explore.counts import Counts, count_option
from cfp.profile.explore.factors import Factors
from cfp.profile.programs.kinds import Option
from tests.profile.cases import CASES, kinds, model, random_option


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), st.integers(0, 99))
def test_sums_of_pairs_are_exact(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = [(i, i + 1) for i in range(len(sizes) - 1)]
    tables = [rng.uniform(1, 2, (sizes[i], sizes[j], 2)) for i, j in pairs]

    def count(combo: Combo) -> Array:
        found = [table[combo[i], combo[j]] for (i, j), table in zip(pairs, tables, strict=True)]
        return np.asarray(sum(found))

    base = tuple(int(rng.integers(size)) for size in sizes)
    every = list(itertools.product(*map(range, sizes)))
    counts = Counts(count, sizes, pairs, base)(np.array(every))
    assert counts == pytest.approx(np.array([count(combo) for combo in every]))


def test_what_does_not_exist_adds_nothing() -> None:
    def count(combo: Combo) -> Array | None:
        return None if combo == (1, 1) else np.array([1.0 + combo[0] + 10 * combo[1]])

    counts = Counts(count, (2, 2), [(0, 1)], (0, 0))
    every = np.array(list(itertools.product(range(2), repeat=2)))
    assert counts(every)[:, 0].tolist() == [1, 11, 2, 12]
    with pytest.raises(ValueError, match="must exist"):
        Counts(count, (2, 2), [(0, 1)], (1, 1))


@pytest.mark.parametrize("name", CASES)
def test_every_segment_can_be_counted(name: str) -> None:
    for kind in kinds(CASES[name]()):
        counted = count_option(kind, random_option(kind, kind.index))
        assert len(counted) == 2 * len(kind.mesh_shape) + 2
        assert (np.isfinite(counted) & (counted >= 0)).all()
        assert counted[-1] > 0  # something is written


def test_a_layer_on_two_axes() -> None:
    """What is sent by options that were not laid out, all four blocks split at random."""
    kind = kinds(model("gpt", (2, 2)))[1]
    factors = Factors(kind.strategies)
    pairs = factors.pairs([(0, 1), (1, 2), (1, 3), (2, 3)])
    laid_out = 0

    def count(combo: Combo) -> Array | None:
        nonlocal laid_out
        laid_out += 1
        joined = factors.join(combo)
        return None if joined is None else count_option(kind, Option(joined))

    counts = Counts(count, factors.sizes, pairs, (0,) * len(factors.sizes))
    assert laid_out < 0.03 * kind.space
    draw = random.Random(0)
    combos = [tuple(draw.randrange(size) for size in factors.sizes) for _ in range(40)]
    exact = [count_option(kind, Option(factors.join(combo) or ())) for combo in combos]
    for some, least in ((slice(0, 2), 0.9), (slice(2, 4), 0.5)):  # bytes, collectives
        sent = np.array(exact)[:, some].sum(1)
        assert np.corrcoef(counts(np.array(combos))[:, some].sum(1), sent)[0, 1] > least
    before = counts(np.array(combos))
    assert counts.exactly(combos[:20])
    assert not counts.exactly(combos[:20])
    assert counts(np.array(combos)).tolist() == [*map(list, exact[:20]), *before[20:].tolist()]
