"""Networks: collectives along several mesh axes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfp.errors import CfpError
from cfp.links import FitError, Link, Network, load_link
from cfp.links.link import COLLECTIVES
from tests.links.drawn import networks, straight

kinds = st.sampled_from(COLLECTIVES)
sizes = st.floats(1, 2.0**32)


@given(networks(), kinds, sizes)
def test_along_one_axis_a_collective_takes_what_the_link_says(
    network: Network, kind: str, size: float
) -> None:
    for axis, n, link in zip(network.axes, network.sizes, network.links, strict=True):
        assert network.time_s(kind, (axis,), size) == link.time_s(kind, n, size)


@given(networks(), kinds, sizes, sizes)
def test_more_bytes_never_take_less(network: Network, kind: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    axes = network.axes
    assert network.time_s(kind, axes, low) <= network.time_s(kind, axes, high) * (1 + 1e-9)


@given(networks(), kinds, sizes)
def test_the_order_in_which_axes_are_named_does_not_matter(
    network: Network, kind: str, size: float
) -> None:
    times = [network.time_s(kind, axes, size) for axes in itertools.permutations(network.axes)]
    assert times == pytest.approx([times[0]] * len(times))


@given(networks(), kinds, sizes)
def test_the_composition_is_the_best_order_of_levels(
    network: Network, kind: str, size: float
) -> None:
    """The definition tries every order of the axes, level by level."""

    def through(order: tuple[str, ...]) -> float:
        left, total = size, 0.0
        for position, axis in enumerate(order):
            n = network.sizes[network.axes.index(axis)]
            link = network.links[network.axes.index(axis)]
            last = position == len(order) - 1
            if kind == "all-reduce" and not last:
                total += link.time_s("reduce-scatter", n, left) + link.time_s("all-gather", n, left)
            else:
                total += link.time_s(kind, n, left)
            left /= n
        return total

    apart = [
        link.time_s(kind, n, size) for n, link in zip(network.sizes, network.links, strict=True)
    ]
    moved = [a for a, n in zip(network.axes, network.sizes, strict=True) if n > 1]
    expected = min(map(through, itertools.permutations(moved)))
    if kind == "all-to-all":
        expected = sum(apart)
    elif kind == "collective-permute":
        expected = max(apart)
    assert network.time_s(kind, network.axes, size) == pytest.approx(expected)


def test_a_slow_axis_dominates() -> None:
    fast, slow = straight("fast", 1e-6, 1e11), straight("slow", 1e-6, 1e9)
    network = Network(("a", "b"), (2, 2), (slow, fast))
    for kind in COLLECTIVES:
        both = network.time_s(kind, ("a", "b"), 2**28)
        part = 1.0 if kind in ("all-to-all", "collective-permute") else 0.5
        alone = slow.time_s(kind, 2, part * 2**28)
        assert alone <= both <= 1.1 * alone


def test_axes_of_one_link_are_one_group() -> None:
    link = load_link("h200_nvlink")
    network = Network(("a", "b"), (2, 4), (link, link))
    found = network.time_s("all-reduce", ("a", "b"), 2**20)
    assert found == link.time_s("all-reduce", 8, 2**20)
    assert not network.filled_in("all-reduce", ("a", "b"))
    assert network.filled_in("all-reduce", ("a",)) is False


def test_a_link_of_several_axes_together_takes_the_place_of_their_composition() -> None:
    links = straight("a", 1e-6, 1e9), straight("b", 1e-6, 1e9), straight("c", 1e-6, 1e9)
    both = straight("a+b", 1.0, 1e9)
    network = Network(("a", "b", "c"), (1, 2, 2), links, {frozenset({"b", "c"}): both})
    found = network.time_s("all-reduce", ("a", "b", "c"), 100)
    assert found == both.time_s("all-reduce", 4, 100)
    assert network.time_s("all-reduce", ("a", "b"), 100) == links[1].time_s("all-reduce", 2, 100)


def test_what_is_composed_or_off_the_table_is_said() -> None:
    network = Network(("a", "b"), (2, 8), (load_link("ib_400g"), load_link("h200_nvlink")))
    assert network.filled_in("all-gather", ("a", "b"))
    assert not network.filled_in("all-gather", ("b",))
    assert Network(("a",), (16,), (load_link("h200_nvlink"),)).filled_in("all-gather", ("a",))


def test_the_error_is_that_of_the_worst_link() -> None:
    def known(name: str, median: float | None) -> Link:
        error = None if median is None else FitError(median, 1.0)
        return Link(name, "node", None, "made up", error, {})

    network = Network(
        ("a", "b", "c"), (2, 2, 2), (known("a", 0.1), known("b", 0.3), known("c", None))
    )
    assert network.error == 0.3
    assert network.unknown_errors == ("c",)
    assert Network(("c",), (2,), (known("c", None),)).error is None


def test_what_one_should_know_of_the_links_is_said() -> None:
    h200, ib = load_link("h200_nvlink"), load_link("ib_400g")
    assert Network(("x",), (8,), (h200,)).notes("NVIDIA H200") == []
    assert Network(("x", "y"), (2, 16), (ib, h200)).notes("NVIDIA H100 80GB HBM3") == [
        "The link h200_nvlink is between NVIDIA H200 devices, and NVIDIA H100 80GB HBM3 stood in "
        "for them: computing is that of the one, communication that of the other.",
        "The link h200_nvlink has no times of 16 devices (axis y): they are filled in by a model "
        "of rings and trees.",
        "Nobody knows the error of ib_400g: plans that seem to differ may be level.",
    ]


def test_unknown_axes_are_refused() -> None:
    network = Network(("a",), (2,), (straight("s", 1.0, 1.0),))
    with pytest.raises(CfpError, match=r"The mesh has no axis `b`: its axes are a\."):
        network.time_s("all-reduce", ("b",), 1)


def test_a_network_shows_its_axes() -> None:
    network = Network(("data", "model"), (2, 8), (load_link("ib_400g"), load_link("h200_nvlink")))
    assert network.show() == (
        "data: 2 devices over ib_400g (error unknown)\n"
        "model: 8 devices over h200_nvlink (error 2.0%)"
    )
