"""When memory is needed, against the definition for every choice."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.profile.peak import Needs, PeakSide, kept_and_scratch, peak_bytes, places

FAST = settings(deadline=None, database=None, derandomize=True, max_examples=200)
PARTS = ("stored", "activations", "gradients", "scratch", "renewed")


@st.composite
def segments(draw: st.DrawFn) -> list[Needs]:
    """Some share what they need. Sizes differ a lot, so that some are never at the peak."""
    kinds = []
    for _ in range(draw(st.integers(1, 3))):
        options = draw(st.integers(1, 3))
        most = {part: draw(st.sampled_from([0, 3, 30])) for part in PARTS}
        numbers = {
            part: draw(st.lists(st.integers(0, most[part]), min_size=options, max_size=options))
            for part in PARTS
        }
        kinds.append(Needs(**{part: np.array(numbers[part]) for part in PARTS}))
    return [
        kinds[i] for i in draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=5))
    ]


def every_choice(found: list[Needs]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(needs.stored)) for needs in found)))


def at(found: list[Needs], choice: tuple[int, ...], i: int) -> int:
    """What is there while segment i is differentiated, by the definition."""
    chosen = list(zip(found, choice, strict=True))
    return int(
        sum(needs.stored[o] for needs, o in chosen)
        + sum(needs.activations[o] for needs, o in chosen[: i + 1])
        + sum(needs.gradients[o] for needs, o in chosen[i:])
        + found[i].scratch[choice[i]]
    )


def updated(found: list[Needs], choice: tuple[int, ...]) -> int:
    """What is there after the update, by the definition."""
    chosen = zip(found, choice, strict=True)
    return int(sum(needs.stored[o] + needs.renewed[o] for needs, o in chosen))


def bound(found: list[Needs], choice: tuple[int, ...]) -> int:
    """What the search counts."""
    counted = [kept_and_scratch(*pair) for pair in zip(found, places(found), strict=True)]
    chosen = list(zip(counted, choice, strict=True))
    return int(sum(kept[o] for (kept, _), o in chosen) + max(s[o] for (_, s), o in chosen))


@settings(FAST)
@given(segments())
def test_the_peak(found: list[Needs]) -> None:
    for choice in every_choice(found):
        expected = max(at(found, choice, i) for i in range(len(found)))
        assert peak_bytes(found, choice) == max(expected, updated(found, choice))


@settings(FAST)
@given(segments())
def test_the_search_counts_no_less_than_the_peak_and_no_more_than_everything(
    found: list[Needs],
) -> None:
    for choice in every_choice(found):
        chosen = list(zip(found, choice, strict=True))
        everything = sum(
            n.stored[o] + max(n.activations[o] + n.gradients[o], n.renewed[o]) for n, o in chosen
        )
        everything += max(n.scratch[o] for n, o in chosen)
        assert peak_bytes(found, choice) <= bound(found, choice) <= everything


@settings(FAST)
@given(segments())
def test_some_segment_among_the_peaks_is_at_the_peak(found: list[Needs]) -> None:
    among = [i for i, place in enumerate(places(found)) if place is PeakSide.AMONG]
    for choice in every_choice(found):
        most = max(at(found, choice, i) for i in among)
        assert peak_bytes(found, choice) == max(most, updated(found, choice))


def test_with_one_option_each_nothing_is_lost() -> None:
    """Where the peak is known, and the update needs no more, the bound is the peak."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        none = np.array([0])
        found = [Needs(*rng.integers(0, 100, (4, 1)), renewed=none) for _ in range(6)]
        assert bound(found, (0,) * 6) == peak_bytes(found, (0,) * 6)


def test_with_large_activations_the_end_of_the_forward_pass_is_the_peak() -> None:
    layer = Needs(*(np.array([n, n]) for n in (10, 8, 2)), np.array([1, 5]), np.array([0, 0]))
    found = places([layer] * 12)
    assert found[:9] == [PeakSide.BEFORE] * 9
    assert found[-1] is PeakSide.AMONG


def test_with_large_gradients_the_end_of_the_backward_pass_is_the_peak() -> None:
    layer = Needs(*(np.array([n, n]) for n in (10, 2, 8)), np.array([1, 5]), np.array([0, 0]))
    found = places([layer] * 12)
    assert found[0] is PeakSide.AMONG
    assert found[-9:] == [PeakSide.AFTER] * 9
