"""Meshes of a number of devices, and how plans of several numbers compare."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfp.planning.scaling import factorisations, meshes


@given(st.integers(1, 256))
def test_every_mesh_of_up_to_three_axes(devices: int) -> None:
    found = factorisations(devices)
    divisors = [n for n in range(2, devices + 1) if devices % n == 0]
    brute = {(devices,)}
    brute |= {(a, devices // a) for a in divisors if devices // a > 1}
    brute |= {
        (a, b, devices // a // b)
        for a in divisors
        for b in divisors
        if a * b < devices and devices % (a * b) == 0
    }
    assert len(found) == len(set(found))
    assert set(found) == brute


def test_links_say_which_axes_there_are() -> None:
    """Inside a machine an axis has no more devices than the link was measured with: 8."""
    found = meshes(16, ["ib_400g", "h200_nvlink"])
    assert found == [
        ((16,), ["ib_400g"]),
        ((2, 8), ["ib_400g", "h200_nvlink"]),
        ((4, 4), ["ib_400g", "h200_nvlink"]),
        ((8, 2), ["ib_400g", "h200_nvlink"]),
    ]
    assert ((8,), ["h200_nvlink"]) in meshes(8, ["ib_400g", "h200_nvlink"])
    assert meshes(16, ["h200_nvlink"]) == []
    assert meshes(1, ["ib_400g", "h200_nvlink"]) == [((1,), ["h200_nvlink"])]


@pytest.mark.parametrize("devices", [4, 32])
def test_meshes_have_all_devices(devices: int) -> None:
    for links in (None, ["ib_400g", "h200_nvlink"]):
        for shape, chosen in meshes(devices, links):
            assert math.prod(shape) == devices
            assert len(chosen) == (0 if links is None else len(shape))
