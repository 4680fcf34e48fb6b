"""Options by factor: the same options, and fewer measurements where a mesh has several axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.profile.explore import Combo, Explorer
from cfp.profile.factors import Factors
from tests.profiling.replay import Table, explore, synthesise

SPLITS = (0, 1, 2)
Strategies = list[list[tuple[int | None, ...]]]


@st.composite
def strategies(draw: st.DrawFn) -> Strategies:
    """One to three blocks on one to three axes, each with some of the products of its splits."""
    axes = draw(st.integers(1, 3))
    products = list(itertools.product((0, 1, None), repeat=axes))
    return draw(
        st.lists(
            st.lists(st.sampled_from(products), min_size=1, max_size=8, unique=True),
            min_size=1,
            max_size=3,
        )
    )


@settings(max_examples=100, deadline=None)
@given(strategies())
def test_factors_are_the_options(blocks: Strategies) -> None:
    factors = Factors(blocks)
    combos = list(itertools.product(*(range(len(some)) for some in blocks)))
    split = [factors.split(combo) for combo in combos]
    assert [factors.join(one) for one in split] == combos
    assert len(set(split)) == len(combos)
    others = set(itertools.product(*map(range, factors.sizes))) - set(split)
    assert all(factors.join(one) is None for one in others)
    assert factors.complete == (not others)


def test_on_one_axis_they_are_the_strategies() -> None:
    factors = Factors([[(2,), (0,), (1,)], [(None,), (3,)]])
    assert factors.sizes == (3, 2)
    assert factors.split((1, 0)) == (1, 0)
    assert factors.pairs([(0, 1)]) == [(0, 1)]


def test_pairs_are_of_one_axis_or_of_one_block() -> None:
    both = list(itertools.product(SPLITS, repeat=2))
    assert Factors([both, both]).pairs([(0, 1)]) == [(0, 2), (1, 3), (0, 1), (2, 3)]


def test_what_does_not_exist_is_not_asked_for() -> None:
    def exists(combo: Combo) -> bool:
        return combo[0] != combo[1]

    explorer = Explorer((3, 3, 2), interface=lambda combo: combo[2], limit=100, exists=exists)
    asked = []
    while some := explorer.ask(4):
        asked += some
        for combo in some:
            explorer.tell(combo, 1.0 + 0.3 * sum(combo))
    assert all(map(exists, asked))
    assert len(asked) == len(set(asked)) <= 12 == explorer.space


def table_of_two_axes(seed: int) -> Table:
    """By factor, of four blocks: what they cost on the axes adds up, but for 2 %."""
    first, second = (synthesise((3,) * 4, seed + i, noise=0, penalties=0) for i in (0, 1000))
    rng = np.random.default_rng(seed)
    truth: dict[Combo, float | None] = {}
    for combo in itertools.product(range(3), repeat=8):
        on_x, on_y = first.truth[combo[::2]], second.truth[combo[1::2]]
        assert on_x is not None
        assert on_y is not None
        truth[combo] = (on_x + 0.5 * on_y) * math.exp(0.02 * rng.standard_normal())
    return Table((3,) * 8, truth, truth)


def regret(explorer: Explorer, table: Table) -> float:
    """By how much the best that it finds is slower than the best there is."""
    assert explore(explorer, table) <= explorer.limit
    assert explorer.best is not None
    found = table.truth[explorer.best]
    assert found is not None
    return found / min(time for time in table.truth.values() if time is not None) - 1


def test_they_find_in_few_measurements_what_blocks_would_not() -> None:
    limit = 30
    by_factor, by_block = [], []
    both = list(itertools.product(SPLITS, repeat=2))
    factors = Factors([both] * 4)
    near = [(0, 1), (1, 2), (2, 3)]
    for seed in range(4):
        table = table_of_two_axes(seed)
        times = {factors.join(combo) or (): time for combo, time in table.truth.items()}
        blocks = Table((9,) * 4, times, times)
        one = Explorer(
            factors.sizes,
            interface=lambda combo: (combo[:2], combo[-2:]),
            pairs=factors.pairs(near),
            limit=limit,
        )
        other = Explorer(blocks.sizes, interface=lambda combo: (combo[0], combo[-1]), limit=limit)
        for explorer, found, regrets in ((one, table, by_factor), (other, blocks, by_block)):
            regrets.append(regret(explorer, found))
    assert np.mean(by_factor) < 0.7 * np.mean(by_block)
    assert np.mean(by_factor) < 0.08


ROWS, COLUMNS, CONTRACTED = range(3)


def table_of_volumes(
    seed: int, batch: float, sizes: Sequence[int], speeds: Sequence[float]
) -> Table:
    """A transformer layer on two axes: bytes over the speed of their axis, and 3 % of noise. What
    is sent on one axis is less where the other splits it too, so that the best often splits the
    batch on one and the weights on the other. `batch` is of activations, to a weight of 1."""
    weights, enters, leaves = (3, 1, 4, 4), (1, 1, 1, 4), (3, 1, 4, 1)
    rng = np.random.default_rng(seed)
    truth: dict[Combo, float | None] = {}
    for combo in itertools.product(range(3), repeat=8):
        time = 6 / math.prod(sizes)
        for block, axis in itertools.product(range(4), range(2)):
            here, there = combo[2 * block + axis], combo[2 * block + 1 - axis]
            size, other = sizes[axis], sizes[1 - axis]
            ring = 2 * (size - 1) / size / speeds[axis]
            if here == ROWS:
                time += ring * weights[block] / (1 if there == ROWS else other)
            elif here == COLUMNS:
                time += ring * batch * enters[block] / (1 if there == COLUMNS else other)
            else:
                time += ring * batch * leaves[block] / (1 if there == CONTRACTED else other)
            if block < 3:
                sent = batch * leaves[block] / (1 if there == CONTRACTED else other)
                following = combo[2 * block + 2 + axis]
                if following == COLUMNS and here != CONTRACTED:
                    time += ring * sent
                elif (here, following) in ((COLUMNS, ROWS), (ROWS, CONTRACTED)):
                    time += 2 * sent / size / speeds[axis]
        truth[combo] = time * math.exp(0.03 * rng.standard_normal())
    return Table((3,) * 8, truth, truth)


def test_axes_that_are_split_differently() -> None:
    """Two hosts of four devices, and four devices that are equally near: in 32 programs of 6561."""
    both = list(itertools.product(SPLITS, repeat=2))
    factors = Factors([both] * 4)
    regrets = []
    for batch, sizes, speeds in ((4, (2, 4), (1, 5)), (1, (2, 4), (1, 20)), (2, (2, 2), (1, 1))):
        for seed in range(2):
            table = table_of_volumes(seed, batch, sizes, speeds)
            explorer = Explorer(
                factors.sizes,
                interface=lambda combo: (combo[:2], combo[-2:]),
                pairs=factors.pairs([(0, 1), (1, 2), (2, 3)]),
                axes=2,
                limit=32,
            )
            regrets.append(regret(explorer, table))
    assert np.mean(regrets) < 0.1


def test_splits_of_which_axes_exclude_each_other() -> None:
    """A dim that one axis divides, and not two: no block can be split alike on both."""

    def exists(combo: Combo) -> bool:
        return all(combo[i] != combo[i + 1] for i in (0, 2))

    explorer = Explorer(
        (3, 3, 3, 3),
        interface=lambda combo: combo[0],
        pairs=Factors([[(0, 1)], [(0, 1)]]).pairs([(0, 1)]),
        axes=2,
        exists=exists,
    )
    there = [combo for combo in itertools.product(range(3), repeat=4) if exists(combo)]
    times = {combo: 1.0 + sum(3**i * split for i, split in enumerate(combo)) for combo in there}
    explore(explorer, Table((3,) * 4, times, times))
    assert explorer.best == min(there, key=times.__getitem__)
