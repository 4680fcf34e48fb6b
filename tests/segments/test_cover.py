"""The cover against brute force over all ways to cut short sequences."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cfp.segments import cover as module
from cfp.segments.cover import Item, Run, cover, name, score

FAST = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
SPACE = 3


def items_of(kinds: Sequence[int], times: int = 1) -> list[Item]:
    """Blocks in a chain: each reads the one before."""
    return [Item(kind, (1,), SPACE, None, times) for kind in kinds]


def valid(items: Sequence[Item], run: Run, max_space: int) -> bool:
    """What the module says a segment is, said again."""
    part = items[run[0] : run[1]]
    space = 1
    for item in part:
        space *= item.space
    return len(part) == 1 or (
        len({item.kind for item in part}) == len(part)
        and space <= max_space
        and len({item.loop for item in part}) == 1
    )


def all_covers(
    items: Sequence[Item], max_space: int = module.MAX_SPACE, start: int = 0
) -> Iterator[list[Run]]:
    if start == len(items):
        yield []
    for stop in range(start + 1, len(items) + 1):
        if valid(items, (start, stop), max_space):
            for rest in all_covers(items, max_space, stop):
                yield [(start, stop), *rest]


def best(items: Sequence[Item], max_space: int = module.MAX_SPACE) -> tuple[int, int, int, int]:
    return min(score(items, runs) for runs in all_covers(items, max_space))


def check(items: Sequence[Item], max_space: int = module.MAX_SPACE) -> list[Run]:
    """A cover that is one: in order, without gaps, every run a segment."""
    runs = cover(items, max_space)
    assert [run[0] for run in runs] == [0, *(run[1] for run in runs[:-1])]
    assert runs[-1][1] == len(items)
    assert all(valid(items, run, max_space) for run in runs)
    return runs


@settings(FAST, max_examples=400)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.sampled_from([3, 9, 27, 10_000]))
def test_never_better_than_possible(kinds: list[int], max_space: int) -> None:
    items = items_of(kinds)
    assert score(items, check(items, max_space)) >= best(items, max_space)


units = st.permutations(range(4)).flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n]))


@settings(FAST, max_examples=200)
@given(units, st.integers(2, 5), st.integers(0, 2), st.integers(0, 2))
def test_repeated_layers(unit: list[int], times: int, before: int, after: int) -> None:
    """Blocks of their own around a layer repeated: always the best cover, and the layer whole."""
    kinds = [*range(10, 10 + before), *unit * times, *range(20, 20 + after)]
    assume(len(kinds) <= 12)
    items = items_of(kinds)
    runs = check(items)
    assert score(items, runs) == best(items)
    layers = [run for run in runs if before <= run[0] < len(kinds) - after]
    assert [stop - start for start, stop in layers] == [len(unit)] * times
    assert len({name(items, run) for run in layers}) == 1


@settings(FAST, max_examples=120)
@given(units, units, st.integers(2, 3), st.integers(0, 1), st.integers(0, 1))
def test_alternating_layers(
    dense: list[int], expert: list[int], times: int, before: int, after: int
) -> None:
    """Two kinds of layer that take turns, sharing no class of block."""
    shifted = [kind + 4 for kind in expert]
    kinds = [*range(10, 10 + before), *[*dense, *shifted] * times, *range(20, 20 + after)]
    assume(len(kinds) <= 10)
    items = items_of(kinds)
    assert score(items, check(items)) == best(items)


@settings(FAST, max_examples=36)
@given(st.integers(1, 3), st.integers(2, 4), st.integers(0, 2))
def test_layers_that_share_a_block(own: int, times: int, before: int) -> None:
    """Dense and expert layers with the same attention: MoE."""
    dense = [0, *range(1, 1 + own)]
    expert = [0, *range(5, 5 + own)]
    kinds = [*range(10, 10 + before), *[*dense, *expert] * times]
    assume(len(kinds) <= 12)
    items = items_of(kinds)
    assert score(items, check(items)) == best(items)


def test_it_is_the_best_on_every_short_sequence() -> None:
    """All sequences of up to three classes and length 7, made of layers or not: never."""
    total = 0
    for length in range(1, 8):
        for kinds in product(range(3), repeat=length):
            if any(kind > max(kinds[:i], default=-1) + 1 for i, kind in enumerate(kinds)):
                continue  # the same sequence in other letters
            items = items_of(kinds)
            found, ideal = score(items, cover(items)), best(items)
            total += 1
            assert found[:2] == ideal[:2], kinds
    assert total == sum((1, 2, 5, 14, 41, 122, 365))


def test_space_limit_cuts() -> None:
    items = items_of([0, 1, 2, 3] * 3)
    assert check(items) == [(0, 4), (4, 8), (8, 12)]
    assert check(items, 80) != check(items)
    assert all(stop - start <= 3 for start, stop in check(items, 80))
    alone = [Item(0, (), 10**6), Item(1, (), 3)]
    assert check(alone) == [(0, 1), (1, 2)]  # too large, yet it must be somewhere


def test_wiring_tells_layers_apart() -> None:
    """Equal blocks that read others: only wiring inside the run counts."""
    plain = items_of([0, 1, 0, 1])
    rewired = [*plain[:3], Item(1, (None,), SPACE)]
    assert len({name(plain, run) for run in check(plain)}) == 1
    assert name(rewired, (0, 2)) != name(rewired, (2, 4))
    far = [Item(0, (7,), SPACE), *plain[1:]]  # reads far back: outside of any run
    assert name(far, (0, 2)) == name(plain, (0, 2))


def test_segments_do_not_straddle_loops() -> None:
    items = [
        Item(5, (), SPACE),
        *(Item(kind, (1,), SPACE, loop=0, times=12) for kind in (0, 1)),
        Item(6, (1,), SPACE),
    ]
    assert check(items) == [(0, 1), (1, 3), (3, 4)]


@pytest.mark.parametrize("unit", [4, 8])
def test_work_grows_linearly(unit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options to choose from and shortest paths sought, layer by layer."""
    searches = 0
    shortest = module._shortest

    def counted(*args: object, **named: object) -> object:
        nonlocal searches
        searches += 1
        return shortest(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_shortest", counted)
    options, sought = [], []
    for layers in (32, 64, 96):
        items = items_of([100, *list(range(unit)) * layers, 101])
        options.append(sum(len(row) for row in module._options(items, module.MAX_SPACE)))
        searches = 0
        assert len(check(items)) == layers + 2
        sought.append(searches)
    assert options[2] - options[1] == options[1] - options[0]
    assert sought == [1, 1, 1], "repeated layers need one search"
