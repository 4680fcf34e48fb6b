"""Options by factor: the same options, and fewer measurements where a mesh has several axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.profile import Option
from cfp.profile.explore.combos import Array, Rows, combos_of
from cfp.profile.explore.explorer import Combo, Explorer
from cfp.profile.explore.factors import Factors, OptionExplorer
from cfp.profile.explore.space import CombinationSpace
from cfp.profile.programs.find_kinds import find_kinds
from tests.profile.explore.replay import Known, Table, explore, synthesise
from tests.profile.steps import analysed

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

    space = CombinationSpace((3, 3, 2), interface=lambda combo: combo[2], exists=exists)
    explorer = Explorer(space, limit=100)
    asked = []
    while some := explorer.ask(4):
        asked += some
        for combo in some:
            explorer.tell(combo, 1.0 + 0.3 * sum(combo))
    assert all(map(exists, asked))
    assert len(asked) == len(set(asked)) <= 12 == explorer.space.size


def table_of_two_axes(seed: int) -> Table:
    """Returns a table of four blocks, by factor: what they cost on the axes adds up, but for
    2 %."""
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
    """Returns by how much the best that it finds is slower than the best there is."""
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
        by_axis = CombinationSpace(factors.sizes, interface=lambda combo: (combo[:2], combo[-2:]))
        whole = CombinationSpace(blocks.sizes, interface=lambda combo: (combo[0], combo[-1]))
        one = Explorer(by_axis, pairs=factors.pairs(near), limit=limit)
        other = Explorer(whole, limit=limit)
        for explorer, found, regrets in ((one, table, by_factor), (other, blocks, by_block)):
            regrets.append(regret(explorer, found))
    assert np.mean(by_factor) < 0.7 * np.mean(by_block)
    assert np.mean(by_factor) < 0.08


ROWS, COLUMNS, CONTRACTED = range(3)


@dataclass(frozen=True, slots=True)
class Layer:
    """A transformer layer on two axes. What is sent on one axis is less where the other splits it
    too, so that the best often splits the batch on one and the weights on the other. `batch` is of
    activations, to a weight of 1; `speeds` are of the axes."""

    batch: float
    sizes: tuple[int, int]
    speeds: tuple[float, float]

    def sent(self, combo: Combo) -> Iterator[tuple[tuple[int, ...], float]]:
        """What (the axis first), and how much of it."""
        weights, enters, leaves = (3, 1, 4, 4), (1, 1, 1, 4), (3, 1, 4, 1)
        for block, axis in itertools.product(range(4), range(2)):
            here, there = combo[2 * block + axis], combo[2 * block + 1 - axis]
            size, other = self.sizes[axis], self.sizes[1 - axis]
            ring = 2 * (size - 1) / size
            whole = (weights, [self.batch * n for n in enters], [self.batch * n for n in leaves])
            of_it = whole[here][block]
            yield (axis, block, here, there), ring * of_it / (1 if there == here else other)
            if block < 3:
                moved = self.batch * leaves[block] / (1 if there == CONTRACTED else other)
                following = combo[2 * block + 2 + axis]
                what = (axis, block, here, there, following)
                if following == COLUMNS and here != CONTRACTED:
                    yield what, ring * moved
                elif (here, following) in ((COLUMNS, ROWS), (ROWS, CONTRACTED)):
                    yield what, 2 * moved / size

    def times(self, seed: int, unlike: float = 0.0) -> Table:
        """Bytes over the speed of their axis, and 3 % of noise. What is sent takes longer or
        shorter than its bytes say, by a deviation `unlike` of each thing sent."""
        rng = np.random.default_rng(seed)
        rates: dict[tuple[int, ...], float] = {}
        truth: dict[Combo, float | None] = {}
        for combo in itertools.product(range(3), repeat=8):
            time = 6 / math.prod(self.sizes)
            for what, size in self.sent(combo):
                if what not in rates:
                    rates[what] = math.exp(unlike * rng.standard_normal()) / self.speeds[what[0]]
                time += rates[what] * size
            truth[combo] = time * math.exp(0.03 * rng.standard_normal())
        return Table((3,) * 8, truth, truth)

    def counts(self, rows: Rows) -> Array:
        """Returns what is sent, by axis."""
        found = np.zeros((len(rows), 2))
        for row, combo in enumerate(combos_of(rows)):
            for what, size in self.sent(combo):
                found[row, what[0]] += size
        return found


LAYERS = [Layer(4, (2, 4), (1, 5)), Layer(1, (2, 4), (1, 20)), Layer(2, (2, 2), (1, 1))]


def explorer_of_layers(limit: int, counts: Known | None = None) -> Explorer:
    factors = Factors([list(itertools.product(SPLITS, repeat=2))] * 4)
    space = CombinationSpace(
        factors.sizes, interface=lambda combo: (combo[:2], combo[-2:]), counts=counts
    )
    return Explorer(space, pairs=factors.pairs([(0, 1), (1, 2), (2, 3)]), axes=2, limit=limit)


def test_axes_that_are_split_differently() -> None:
    """Two hosts of four devices, and four devices that are equally near: in 32 programs of 6561."""
    tables = [layer.times(seed) for layer in LAYERS for seed in range(2)]
    assert np.mean([regret(explorer_of_layers(32), table) for table in tables]) < 0.1


def test_what_is_sent_leads_to_the_best_in_few_programs() -> None:
    """It takes 20 of 6561 programs, however fast the axes are, and though bytes tell the time by
    25 % only."""
    found, without = [], []
    for layer in LAYERS:
        every = np.array(list(itertools.product(range(3), repeat=8)))
        counted = layer.counts(every).reshape((3,) * 8 + (2,))
        table = layer.times(0, unlike=0.25)

        counts = Known(partial(lambda known, rows: known[tuple(rows.T)], counted))
        explorer = explorer_of_layers(20, counts)
        explorer.tell((0,) * 8, table.truth[(0,) * 8])
        times = [table.truth[combo] or math.inf for combo in explorer.ask(8)]
        assert np.mean(times[:4]) < np.mean(times[4:]), "what promises most comes first"
        few = explorer_of_layers(20, counts)
        few.tell((0,) * 8, table.truth[(0,) * 8])
        two = [table.truth[combo] or math.inf for combo in few.ask(2)]
        assert np.mean(two) < np.mean(times[4:]), "and is all that is asked for first"
        found.append(regret(explorer_of_layers(20, counts), table))
        without.append(regret(explorer_of_layers(20), table))
    assert np.mean(found) < 0.1
    assert np.mean(found) < 0.5 * np.mean(without)


def test_the_best_is_found_within_forty_programs_in_nine_of_ten_runs() -> None:
    """There are 6561 programs, on three networks, with times drawn anew for each run; the best is
    found to a per cent, a third of the noise."""
    regrets = []
    for layer, runs in zip(LAYERS, (4, 3, 3), strict=True):
        every = np.array(list(itertools.product(range(3), repeat=8)))
        counted = layer.counts(every).reshape((3,) * 8 + (2,))
        counts = Known(partial(lambda known, rows: known[tuple(rows.T)], counted))
        for seed in range(runs):
            table = layer.times(seed, unlike=0.25)
            regrets.append(regret(explorer_of_layers(40, counts), table))
    assert len(regrets) == 10
    assert sum(lost < 0.01 for lost in regrets) >= 9


def test_splits_of_which_axes_exclude_each_other() -> None:
    """A dim that one axis divides, and not two: no block can be split alike on both."""

    def exists(combo: Combo) -> bool:
        return all(combo[i] != combo[i + 1] for i in (0, 2))

    space = CombinationSpace((3, 3, 3, 3), interface=lambda combo: combo[0], exists=exists)
    pairs = Factors([[(0, 1)], [(0, 1)]]).pairs([(0, 1)])
    explorer = Explorer(space, pairs=pairs, axes=2)
    there = [combo for combo in itertools.product(range(3), repeat=4) if exists(combo)]
    times = {combo: 1.0 + sum(3**i * split for i, split in enumerate(combo)) for combo in there}
    explore(explorer, Table((3,) * 4, times, times))
    assert explorer.best == min(there, key=times.__getitem__)


def test_in_a_hurry_what_sends_least_comes_first() -> None:
    """Two products whose weights are larger than their activations: with a budget, splitting the
    weights between them is measured before anything that sends the gradients of weights."""
    (kind,) = find_kinds(analysed(layers=2, width=64))
    explorer = OptionExplorer(kind, hurried=True)
    explorer.tell(Option((0, 0)), 1.0, False)
    (first,) = explorer.ask(1)
    output_features, input_features = (1,), (2,)
    chosen = [kind.strategies[block][number] for block, number in enumerate(first.combo)]
    assert chosen == [output_features, input_features]
