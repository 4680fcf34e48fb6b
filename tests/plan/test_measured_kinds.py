"""What plan files keep of the measured options: all of it, of bounded size, and checked."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from cfp.errors import CfpError
from cfp.plan.fields import Fields
from cfp.plan.measured_kinds import (
    MOST_SENT,
    OTHER_LINES,
    MeasuredBlock,
    MeasuredKind,
    MeasuredOption,
    read_kinds,
    short_sent,
)
from cfp.profile.measure.sent import Sent

BLOCK = MeasuredBlock(("product [2,4]",), ("batch",), (4,), ("sum",), ("batch", "replicated"), 8.0)
OPTION = MeasuredOption("batch", (0,), "zero1", 1.0, 0.1, 0.6, 0.4, 64, False)
SENT = Sent("all-reduce", None, "a.py:1 (f)", 0.5, 100.0)
KIND = MeasuredKind(
    "f",
    (0, 2),
    2,
    2,
    1,
    False,
    (BLOCK,),
    (OPTION, MeasuredOption("replicated", (1,), "block", 2.0, 0.1, None, None, 96, True, (SENT,))),
    3,
)


def document() -> Any:
    return json.loads(json.dumps({"kinds": [asdict(KIND)]}))


def read(data: Any) -> tuple[MeasuredKind, ...]:
    return read_kinds(Fields("plan.json", data), "kinds")


def test_what_is_written_is_read() -> None:
    assert read(document()) == (KIND,)
    assert KIND.option("batch") is OPTION
    assert KIND.option("groups") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda kind: kind["options"][0].update(combo=[2]), "number the blocks' strategies"),
        (lambda kind: kind["options"][0].update(combo=[]), "number the blocks' strategies"),
        (lambda kind: kind["blocks"][0].update(extents=[]), "an extent for each candidate"),
        (lambda kind: kind["options"][0].update(time_s="1"), "`time_s`"),
        (lambda kind: kind["options"][1]["sent"][0].update(axes="x"), "`axes`"),
    ],
)
def test_what_is_wrong_is_refused(change: Any, said: str) -> None:
    wrong = document()
    change(wrong["kinds"][0])
    with pytest.raises(CfpError, match=said):
        read(wrong)


def test_small_rows_are_put_together() -> None:
    """Nothing is lost of the sum."""
    many = tuple(Sent("all-reduce", (i % 2,), f"a.py:{i}", 1, 100.0 - i) for i in range(40))
    short = short_sent(many)
    assert short[:MOST_SENT] == many[:MOST_SENT]
    assert [row.source for row in short[MOST_SENT:]] == [OTHER_LINES] * 2
    assert sum(row.bytes for row in short) == sum(row.bytes for row in many)
    assert sum(row.times for row in short) == len(many)
    assert short_sent(many[:3]) == many[:3]
