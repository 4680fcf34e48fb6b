"""A user's project: `make_step()` returns a step and its arguments."""

from __future__ import annotations

from typing import Any

from tests.planning.test_planner import args, step


def make_step() -> tuple[Any, tuple[Any, ...]]:
    return step, args()
