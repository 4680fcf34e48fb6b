"""Amounts of memory as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfp.errors import CfpError
from cfp.memory_size import parse_memory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1024", 1024),
        ("7b", 7),
        ("500MB", 500_000_000),
        ("2kB", 2000),
        ("12GiB", 12 * 2**30),
        ("1TiB", 2**40),
        ("1TB", 10**12),
        ("1.5KiB", 1536),
        ("0.25 gib", 2**28),
        ("  3 mib\n", 3 * 2**20),
        ("1.001kB", 1001),  # 1.001 * 1000 is 1000.999...
    ],
)
def test_amounts(text: str, expected: int) -> None:
    assert parse_memory(text) == expected


@given(st.integers(0, 2**50), st.sampled_from(["", "B", "b"]))
def test_plain_numbers_are_bytes(count: int, unit: str) -> None:
    assert parse_memory(f"{count}{unit}") == count


@given(st.integers(0, 10**6), st.sampled_from("kmgt"))
def test_units_are_powers(count: int, prefix: str) -> None:
    power = "kmgt".index(prefix) + 1
    assert parse_memory(f"{count}{prefix}B") == count * 1000**power
    assert parse_memory(f"{count} {prefix.upper()}iB") == count * 1024**power


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1GB", "1e3", "12XB", "1.GiB", ".5GB", "1 2GB", "12Gi", "12G", "nan", "1_0"],
)
def test_anything_else_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(CfpError, match="is not an amount of memory: write 12GiB, 500MB or bytes"):
        parse_memory(text)
