"""Which programs are compiled side by side, and which wait."""

from __future__ import annotations

import pytest

from cfp.profile.measure.compiling import WorkerPrograms
from tests.profile.fake_runner import Clock, FakeRunner, clock, requests

__all__ = ["clock"]


@pytest.mark.parametrize(("left_s", "alone"), [(50.0, True), (100.0, False)])
def test_the_first_is_compiled_alone_where_there_may_be_no_time_for_all(
    clock: Clock, left_s: float, alone: bool
) -> None:
    """Three of 10 s each take more than half of 50 s, if they take cores from one another."""
    runner = FakeRunner(clock, compile_s=10.0)
    programs = WorkerPrograms(runner, abreast=8)
    made = programs.compile_in_time((), tuple(requests(*"abc")), clock.now + left_s, 10.0)
    assert [one.key for one in made] == [*"abc"]
    waits = [keys for kind, keys in runner.calls if kind == "finished"]
    assert waits == ([("a",), ("b", "c")] if alone else [("a", "b", "c")])
