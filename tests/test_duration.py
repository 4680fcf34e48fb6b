"""Lengths of time as people write them."""

from __future__ import annotations

import pytest

from cfp.duration import parse_duration
from cfp.errors import CfpError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("30d", 30 * 86400),
        ("1d2h3m4.5s", 86400 + 7200 + 180 + 4.5),
        ("1.5h", 5400),
        (" 2H ", 7200),
        ("45", 45),
        ("0.5", 0.5),
        ("0s", 0),
    ],
)
def test_reads(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "m", "-5m", "5 weeks", "30m1h", "1h1h", "1h30", "inf", "nan", "1e3", "5,5m"]
)
def test_refuses_in_one_sentence(text: str) -> None:
    with pytest.raises(CfpError, match=r"is not a length of time: write 90s, 5m, 1h30m or 30d\.$"):
        parse_duration(text)


def test_refuses_forever() -> None:
    with pytest.raises(CfpError, match="too long"):
        parse_duration("9" * 400 + "d")
