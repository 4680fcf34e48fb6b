"""Which combinations are measured: few, the right ones, and the same every time."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.profile.explore.combos import Array, Rows, combos_of
from cfp.profile.explore.covering import covering
from cfp.profile.explore.explorer import Combo, Explorer, default_limit
from cfp.profile.explore.space import CombinationSpace
from tests.profile.explore.replay import Known, Table, ends, explore, replay, synthesise

LAYER = (3, 3, 3, 3)
MOE = (3, 3, 3, 4, 4, 4, 4)


def space(sizes: Sequence[int]) -> list[Combo]:
    return list(itertools.product(*map(range, sizes)))


def explorer(sizes: Sequence[int] = LAYER, **options: object) -> Explorer:
    return Explorer(CombinationSpace(sizes, interface=ends), **options)  # type: ignore[arg-type]


# -- the design ------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_covering_has_every_pair(sizes: list[int], data: st.DataObject) -> None:
    possible = list(itertools.combinations(range(len(sizes)), 2))
    pairs = data.draw(st.sets(st.sampled_from(possible)) if possible else st.just(set()))
    design = covering(tuple(sizes), tuple(sorted(pairs)))
    for i, j in pairs:
        assert {(c[i], c[j]) for c in design} == set(space((sizes[i], sizes[j])))
    for block, size in enumerate(sizes):
        assert {c[block] for c in design} == set(range(size))
    assert len(design) == len(set(design))


@pytest.mark.parametrize(("sizes", "programs"), [(LAYER, 9), (MOE, 16), ((3,), 3), ((1, 1), 1)])
def test_covering_of_neighbours_is_as_small_as_it_can_be(
    sizes: tuple[int, ...], programs: int
) -> None:
    chain = tuple(itertools.pairwise(range(len(sizes))))
    assert len(covering(sizes, chain)) == programs


def test_the_default_limit_is_a_third_of_a_layer_and_little_of_a_large_space() -> None:
    assert default_limit(LAYER) == 27
    assert default_limit((2, 2)) == 4
    assert default_limit(MOE) <= 100


# -- what it finds ---------------------------------------------------------------------------------


def test_finds_the_best_of_additive_and_paired_times() -> None:
    regrets = []
    for seed in range(20):
        found = replay(synthesise(LAYER, seed, noise=0, triples=0, penalties=0))
        assert found.programs <= 27
        regrets.append(found.regret)
    assert np.mean(np.array(regrets) < 0.02) == 1  # the tolerance
    assert np.mean(np.array(regrets) == 0) > 0.7


def test_regret_on_realistic_layers() -> None:
    found = [replay(synthesise(LAYER, seed, noise=0.01), batch=12) for seed in range(80)]
    regrets = [f.regret for f in found]
    assert max(f.programs for f in found) <= 27
    assert np.mean(regrets) < 0.01
    assert np.quantile(regrets, 0.95) < 0.03
    assert np.mean([f.interface_regret for f in found]) < 0.025


def test_with_noise_of_3_percent_little_is_lost_to_measuring_everything() -> None:
    lost = []
    for seed in range(25):
        table = synthesise(LAYER, seed, noise=0.03)
        times = {c: t for c, t in table.measured.items() if t is not None}
        truth = {c: t for c, t in table.truth.items() if t is not None}
        everything = truth[min(times, key=times.__getitem__)] / min(truth.values()) - 1
        lost.append(replay(table).regret - everything)
    assert np.mean(lost) < 0.01


def test_hopeless_combinations_do_not_spoil_the_model() -> None:
    found = [replay(synthesise(LAYER, s, noise=0.01, penalties=0.2)).regret for s in range(20)]
    assert np.mean(found) < 0.02


def test_a_layer_of_experts_takes_a_hundred_programs() -> None:
    found = replay(synthesise(MOE, 0, noise=0.01), batch=12)
    assert found.programs <= 100
    assert found.regret < 0.05


def test_counts_are_used() -> None:
    """Counts that tell the time find the best in fewer programs; useless ones do no harm."""
    tables = [synthesise(LAYER, seed, noise=0, penalties=0) for seed in range(15)]

    def half(rows: Rows, table: Table) -> Array:
        return np.array([[0.5 * (table.truth[combo] or 0)] for combo in combos_of(rows)])

    def odd(rows: Rows) -> Array:
        return (rows.sum(1, keepdims=True) % 2).astype(float)

    told = [replay(t, limit=12, counts=Known(partial(half, table=t))) for t in tables]
    none = [replay(t, limit=12) for t in tables]
    useless = [replay(t, counts=Known(odd)) for t in tables[:5]]
    assert np.mean([r.regret for r in told]) < 0.5 * np.mean([r.regret for r in none])
    assert np.mean([r.regret for r in useless]) < 0.02


class Rough(Known):
    """Counts that are the times, but for errors of a half that `exactly` does away with."""

    def __init__(self, table: Table, seed: int) -> None:
        spread = np.random.default_rng(seed).lognormal(0, 0.5, table.sizes)
        self.known = np.array([table.truth[combo] for combo in space(table.sizes)], dtype=float)
        self.known = self.known.reshape(table.sizes)
        self.counts = self.known * spread
        self.counted: set[Combo] = set()
        super().__init__(lambda rows: self.counts[tuple(rows.T)][:, None])


class Sharpened(Rough):
    def exactly(self, combos: Iterable[Combo]) -> bool:
        new = {*combos} - self.counted
        for combo in new:
            self.counts[combo] = self.known[combo]
        self.counted |= new
        return bool(new)


def test_what_leads_is_counted_exactly() -> None:
    """No combination may lead, or teach what counts cost, by an error of its counts."""
    tables = [synthesise(LAYER, seed, noise=0, penalties=0) for seed in range(15)]
    rough = [replay(t, limit=12, counts=Rough(t, i)).regret for i, t in enumerate(tables)]
    sharpened = [Sharpened(t, i) for i, t in enumerate(tables)]
    exact = [replay(t, limit=12, counts=c).regret for t, c in zip(tables, sharpened, strict=True)]
    assert np.mean(exact) < 0.5 * np.mean(rough)
    assert max(len(counts.counted) for counts in sharpened) < 80, "of 81, not all"


# -- what it is told -------------------------------------------------------------------------------


def test_infeasible_combinations_are_never_the_best_and_do_not_stop_it() -> None:
    table = synthesise(LAYER, 3, infeasible=0.2)
    walk = explorer()
    explore(walk, table)
    assert walk.best is not None
    assert table.measured[walk.best] is not None
    assert all(table.measured[c] is not None for c in walk.best_by_interface.values())


def test_the_limit_waits_until_something_runs() -> None:
    runs = (2, 1, 2, 1)
    table = Table(LAYER, {runs: 1.0}, {runs: 1.0})
    walk = explorer(limit=5)
    explore(walk, table)
    assert walk.best == runs
    assert walk.reason == "limit"


def test_nothing_runs() -> None:
    walk = explorer((2, 3))
    assert explore(walk, Table((2, 3), {}, {})) == 6
    assert walk.best is None
    assert walk.best_by_interface == {}
    assert walk.reason == "all measured"
    with pytest.raises(ValueError, match="tell a time"):
        walk.predict([(0, 0)])


def test_a_bound_is_at_least() -> None:
    walk = explorer((3, 3))
    for combo in space((3, 3)):
        if combo != (2, 2):
            walk.tell(combo, 1.0 + 0.1 * sum(combo))
    walk.tell((0, 0), 0.5, bound=True)  # says less than the measurement it follows
    assert walk.best == (0, 0)
    walk.tell((2, 2), 0.01, bound=True)
    assert walk.best == (0, 0)
    low = walk.predict([(2, 2)])[0][0]
    walk.tell((2, 2), 1.9, bound=True)
    walk.tell((2, 2), 0.02, bound=True)  # a lower bound adds nothing
    high = walk.predict([(2, 2)])[0][0]
    assert low == pytest.approx(1.4, rel=0.1)  # the others say so, and the bound agrees
    assert high > 1.6


def test_only_bounds() -> None:
    walk = explorer()
    walk.tell((0, 0, 0, 0), 1.0, bound=True)
    assert walk.best is None
    explore(walk, synthesise(LAYER, 0))
    assert walk.best is not None


def test_told_without_being_asked_counts() -> None:
    table = synthesise(LAYER, 5)
    stored = space(LAYER)[::4]
    walk = explorer()
    for combo in stored:
        walk.tell(combo, table.measured[combo])
    asked = []
    while picks := walk.ask(8):
        asked += picks
        for combo in picks:
            walk.tell(combo, table.measured[combo])
    assert not set(asked) & set(stored)
    assert len(asked) + len(stored) <= walk.limit


@pytest.mark.parametrize("sizes", [LAYER, MOE])
def test_the_whole_space_told(sizes: tuple[int, ...]) -> None:
    walk = explorer(sizes)
    for combo in space(sizes):
        walk.tell(combo, 1.0 + sum(combo))
    assert walk.ask(8) == []
    assert walk.done
    assert walk.reason == "all measured"
    assert walk.best == (0,) * len(sizes)
    assert walk.predict([(0,) * len(sizes)])[0] == pytest.approx(1.0, rel=0.1)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="`combo`"):
        explorer().tell((0, 0, 0, 3), 1.0)
    with pytest.raises(ValueError, match="`combo`"):
        explorer().tell((0, 0, 0), 1.0)
    with pytest.raises(ValueError, match="`time_s`"):
        explorer().tell((0, 0, 0, 0), math.nan)
    with pytest.raises(ValueError, match="`sizes`"):
        explorer(())


# -- how it asks -----------------------------------------------------------------------------------


def test_the_best_is_the_best_told_at_any_time() -> None:
    table = synthesise(LAYER, 8, infeasible=0.1)
    walk = explorer()
    told: dict[Combo, float] = {}
    while picks := walk.ask(4):
        for combo in picks:
            time_s = table.measured[combo]
            walk.tell(combo, time_s)
            if time_s is not None:
                told[combo] = time_s
            assert walk.best == min(told, key=told.__getitem__, default=None)


def test_it_asks_the_same_every_time_and_nothing_twice() -> None:
    table = synthesise(LAYER, 9)

    def asked() -> list[Combo]:
        walk, order = explorer(), list[Combo]()
        while picks := walk.ask(5):
            order += picks
            for combo in picks:
                walk.tell(combo, table.measured[combo])
        return order

    order = asked()
    assert order == asked()
    assert len(order) == len(set(order))


def test_several_may_be_out() -> None:
    """Batches asked before the last is told differ, and an answer may be late."""
    table = synthesise(LAYER, 10)
    walk = explorer()
    out: list[Combo] = []
    seen: set[Combo] = set()
    while True:
        picks = walk.ask(4)
        assert not seen & set(picks)
        seen |= set(picks)
        out += picks
        if not out:
            break
        combo = out.pop(0)
        walk.tell(combo, table.measured[combo])
    assert walk.done
    assert len(seen) <= walk.limit


@pytest.mark.parametrize("limit", [1, 5, 10, 14])
def test_the_limit_holds_whatever_the_batch(limit: int) -> None:
    table = synthesise(LAYER, 11)
    for batch in (1, 5, 8, 100):
        assert replay(table, batch=batch, limit=limit).programs <= limit


def test_one_block_and_blocks_that_do_not_meet() -> None:
    walk = explorer((4,))
    assert sorted(walk.ask(8)) == [(0,), (1,), (2,), (3,)]
    assert not walk.done  # they are out
    loose = explorer((3, 3, 3), pairs=[(0, 2)])
    assert len(loose.ask(20)) == 9


def far_along(sizes: tuple[int, ...]) -> Explorer:
    """60 combinations told at random, the design left out."""
    walk = explorer(sizes, limit=90)
    walk._design = []
    rng = np.random.default_rng(0)
    for row in rng.integers(0, sizes, (60, len(sizes))).tolist():
        walk.tell(tuple(row), time_of(tuple(row)))
    return walk


def time_of(combo: Combo) -> float:
    apart = sum(a != b for a, b in itertools.pairwise(combo))
    return 1 + 0.02 * sum(combo) + 0.05 * apart


@pytest.mark.parametrize("sizes", [MOE, (9,) * 4, (10,) * 6, (3,) * 13])
def test_large_spaces_are_fast(sizes: tuple[int, ...]) -> None:
    walk = far_along(sizes)
    started = time.thread_time()  # what others do on the machine does not count
    picks = walk.ask(8)
    seconds = time.thread_time() - started
    assert len(picks) == 8
    assert min(map(time_of, picks)) < time_of(walk.best or ())
    assert seconds < (0.5 if math.prod(sizes) < 10_000 else 2)


def test_large_spaces_are_small_in_memory() -> None:
    walk = far_along((10,) * 6)
    tracemalloc.start()
    walk.ask(2)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200e6
