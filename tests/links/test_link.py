"""Links: the time of a collective, on and off the table."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfp.errors import CfpError
from cfp.links import Curve, Link
from cfp.links.link import COLLECTIVES, wire_factor
from tests.links.drawn import curves, links, straight

sizes = st.floats(0, 2.0**34)


@given(curves())
def test_a_curve_goes_through_its_points(curve: Curve) -> None:
    for size, time_s in zip(curve.bytes, curve.times_s, strict=True):
        assert curve.time_s(size) == pytest.approx(time_s)


@given(links(), st.sampled_from(COLLECTIVES), st.integers(1, 300), sizes, sizes)
def test_more_bytes_never_take_less(
    link: Link, kind: str, group: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert link.time_s(kind, group, low) <= link.time_s(kind, group, high) * (1 + 1e-9)


@given(links(), st.sampled_from(COLLECTIVES), sizes)
def test_a_tabled_group_is_its_curve(link: Link, kind: str, size: float) -> None:
    for group, curve in link.tables[kind].items():
        expected = curve.time_s(size) if size > 0 else 0.0
        assert link.time_s(kind, group, size) == expected
        assert link.has(kind, group)


@given(st.sampled_from(COLLECTIVES), st.integers(2, 512), st.integers(0, 2**32))
def test_other_groups_follow_rings_and_trees(kind: str, group: int, size: int) -> None:
    """On a network that is a ring with tree latencies, any two groups tell all others exactly."""

    def true_s(n: int, size: float) -> float:
        return 1e-6 * (1 + 3 * math.log2(n)) + wire_factor(kind, n) * size / 1e9

    ends = (1, 2**33)
    ring = {n: Curve(ends, tuple(true_s(n, size) for size in ends)) for n in (2, 512)}
    link = Link("ring", "node", None, "made up", None, {kind: ring})
    found = link.time_s(kind, group, size)
    assert found == pytest.approx(true_s(group, size) if size else 0.0, abs=1e-8)
    assert link.has(kind, group) == (group in (2, 512))


def test_beyond_the_table_latency_grows_with_the_steps_and_transfer_with_the_ring() -> None:
    link = straight("a", 10e-6, 1e9)
    assert link.time_s("all-gather", 16, 1) == pytest.approx(4 * 10e-6, rel=1e-3)
    transfer = link.time_s("all-gather", 16, 2**30) - 4 * 10e-6
    assert transfer == pytest.approx((15 / 16) / (1 / 2) * 2**30 / 1e9, rel=1e-6)


def test_permutes_without_a_table_are_half_of_an_exchange() -> None:
    link = straight("a", 10e-6, 1e9)
    tables = {kind: table for kind, table in link.tables.items() if kind != "collective-permute"}
    bare = Link("b", "node", None, "made up", None, tables)
    exchange = bare.time_s("all-to-all", 2, 2000)
    assert bare.time_s("collective-permute", 8, 1000) == exchange
    assert not bare.has("collective-permute", 2)


def test_one_device_and_no_bytes_take_nothing() -> None:
    link = straight("a", 1.0, 1.0)
    assert link.time_s("all-reduce", 1, 100) == 0
    assert link.time_s("all-reduce", 8, 0) == 0


def test_other_kinds_of_xla_are_like_those_of_the_table() -> None:
    link = straight("a", 1.0, 1.0)
    ragged = link.time_s("ragged-all-to-all", 2, 9)
    assert ragged == link.time_s("all-to-all", 2, 9)
    with pytest.raises(CfpError, match=r"`gather` is no collective that links know: they are all-"):
        link.time_s("gather", 2, 9)


def test_devices_are_known_by_how_their_names_begin() -> None:
    tables = straight("a", 1.0, 1.0).tables
    link = Link("a", "node", "NVIDIA H100", "made up", None, tables)
    assert link.is_between("NVIDIA H100 80GB HBM3")
    assert not link.is_between("NVIDIA H200")
    assert Link("a", "network", None, "made up", None, tables).is_between("cpu")
