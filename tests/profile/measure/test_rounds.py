"""Runs in turn, with times that are written down beforehand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.rounds import MORE, Anchor, Effort, OutOfTime, Rounds
from cfp.profile.runners.job import Shares
from tests.profile.fake_runner import Clock, FakeRunner, clock

__all__ = ["clock"]

EFFORT = Effort(warmups=2, repeats=4)


def run(
    runner: FakeRunner,
    *keys: str,
    effort: Effort = EFFORT,
    anchor: Anchor | None = None,
    limits: dict[str, float] | None = None,
    budget_s: float = math.inf,
) -> dict[str, Measurement]:
    """Returns what `Rounds.run` returns, of programs that are compiled."""
    runner.there.update(keys, [] if anchor is None else [anchor.key])
    runner.cold.update(keys)
    deadline = runner.ends = runner.clock.now + budget_s
    return Rounds(runner, effort, anchor, limits or {}, deadline).run(keys)


def test_round_by_round_and_warm_ups_do_not_count(clock: Clock) -> None:
    runner = FakeRunner(clock, {"a": 1.0, "b": 2.0, "c": 3.0}, first={"a": 50.0, "c": 7.0})
    found = run(runner, "a", "b", "c")
    rounds = [tuple(ran) for ran in batched(runner.ran(), 3)]
    assert len(rounds) == 6
    assert all(sorted(ran) == ["a", "b", "c"] for ran in rounds)
    assert len(set(rounds)) > 1, "no program has the same neighbour always"
    assert [found[key].runs_s for key in "abc"] == [(1.0,) * 4, (2.0,) * 4, (3.0,) * 4]
    assert [found[key].spread_s for key in "abc"] == [0, 0, 0]
    assert runner.calls[-1] == ("time_shares", ("a", "b", "c"))
    assert found["b"].shares == Shares(2.0, 1.0, 1.0)
    assert found["b"].split() == Shares(1.0, 0.5, 0.5)
    assert not any(found[key].stopped_early or found[key].failed for key in "abc")


def test_short_programs_are_traced_twice(clock: Clock) -> None:
    runner = FakeRunner(clock, {"a": 0.01, "b": 1.0})
    run(runner, "a", "b")
    assert runner.calls[-1] == ("time_shares", ("a", "a", "b"))


def test_a_program_that_follows_itself_runs_twice_and_the_second_counts(clock: Clock) -> None:
    effort = Effort(warmups=1, repeats=4, follows=True)
    ran: list[str] = []

    def slow(now: float) -> float:
        ran[:] = runner.ran()
        return 1.0 if len(ran) > 1 and ran[-1] == ran[-2] else 5.0

    runner = FakeRunner(clock, {"a": 0.01, "b": 0.02}, slow=slow)
    found = run(runner, "a", "b", effort=effort)
    assert len(runner.ran()) == 2 * 2 * 5
    assert all(first == second for first, second in batched(runner.ran(), 2))
    assert [found[key].runs_s for key in "ab"] == [(0.01,) * 4, (0.02,) * 4]


def test_one_that_takes_long_need_not_follow_itself(clock: Clock) -> None:
    runner = FakeRunner(clock, {"a": 0.4, "b": 0.6})
    run(runner, "a", "b", effort=Effort(warmups=1, repeats=4, follows=True))
    assert Counter(runner.ran()) == {"a": 2 * 5, "b": 5}


def batched(ran: list[str], size: int) -> list[list[str]]:
    return [ran[i : i + size] for i in range(0, len(ran), size)]


def test_five_warm_ups_and_ten_runs_by_default(clock: Clock) -> None:
    runner = FakeRunner(clock)
    found = run(runner, "a", effort=Effort())
    assert len(runner.ran()) == 15
    assert len(found["a"].runs_s) == 10


@pytest.mark.parametrize(
    ("run_s", "enough_s", "rounds"),
    [(1.0, 0.0, 4), (1.0, 3.0, 4), (1.0, 6.0, 6), (0.001, 6.0, 4 * MORE)],
)
def test_short_programs_run_more_often(
    clock: Clock, run_s: float, enough_s: float, rounds: int
) -> None:
    """They run until there is enough of them, within bounds."""
    effort = Effort(warmups=1, repeats=4, enough_s=enough_s)
    found = run(FakeRunner(clock, {"a": run_s, "b": run_s}), "a", "b", effort=effort)
    assert [len(found[key].runs_s) for key in "ab"] == [rounds, rounds]


def test_rounds_end_once_runs_agree(clock: Clock) -> None:
    """Two to warm up, six that count; one program that does not agree keeps all going."""
    effort = Effort(warmups=5, repeats=10, steady=0.02)
    runner = FakeRunner(clock, {"a": 1.0, "b": 2.0})
    assert len(run(runner, "a", "b", effort=effort)["a"].runs_s) == 6
    assert len(runner.ran()) == 2 * 8
    wobbles = FakeRunner(clock, {"a": 1.0, "b": 2.0}, slow=lambda now: 1 + 0.01 * (int(now) % 5))
    assert len(run(wobbles, "a", "b", effort=effort)["b"].runs_s) == 10


@pytest.mark.parametrize(
    ("run_s", "fewest", "warm", "counted"),
    [(1.0, 3, 2, 3), (1.0, 6, 2, 6), (0.4, 3, 2, 5), (0.01, 3, 5, 10)],
)
def test_long_programs_run_less_often(
    clock: Clock, run_s: float, fewest: int, warm: int, counted: int
) -> None:
    """A program sits out once there is plenty of it. A step that is compared with others does not:
    a short one beside it keeps both going."""
    effort = Effort(plenty_s=2.0, fewest=fewest)
    runner = FakeRunner(clock, {"a": run_s, "b": 0.01}, slow=_wobble)
    found = run(runner, "a", "b", effort=effort)
    assert [len(found[key].runs_s) for key in "ab"] == [counted, 10]
    assert runner.ran().count("a") == warm + counted
    assert runner.ran().count("b") == 15
    beside = FakeRunner(clock, {"a": run_s, "b": 0.01}, slow=_wobble)
    found = run(beside, "a", "b", effort=replace(effort, follows=True))
    assert [len(found[key].runs_s) for key in "ab"] == [10, 10]


def test_so_does_the_anchor(clock: Clock) -> None:
    runner = FakeRunner(clock, {"anchor": 0.6, "a": 0.01}, slow=_wobble)
    run(runner, "a", anchor=Anchor("anchor", 0.6), effort=Effort(plenty_s=1.0))
    assert runner.ran().count("anchor") == 1 + 3


def _wobble(now: float) -> float:
    return 1.0 + 0.1 * (int(now * 100) % 3)


def test_a_disturbed_run_changes_nothing_but_the_spread(clock: Clock) -> None:
    runs = {14: 9.0}

    def slow(now: float) -> float:
        return runs.get(len(runner.calls), 1.0)

    runner = FakeRunner(clock, slow=slow)
    found = run(runner, "a", effort=Effort())["a"]
    assert sorted(found.runs_s) == [1.0] * 9 + [9.0]
    assert found.time_s == 1.0
    assert found.at_least_s == 1.0
    assert found.spread_s == 0.0  # one in ten is no half
    noisy = Measurement("", "", (1.0, 1.0, 2.0, 3.0, 3.0), drift=2.0)
    assert (noisy.time_s, noisy.spread_s) == (1.0, 0.5)


def test_the_anchor_runs_in_every_round_that_counts(clock: Clock) -> None:
    runner = FakeRunner(clock, {"anchor": 2.0, "a": 3.0}, slow=lambda now: 1.5)
    found = run(runner, "a", "b", anchor=Anchor("anchor", 2.0))
    ran = runner.ran()
    for first, *others in batched(ran[-3 * EFFORT.repeats :], 3):
        assert first == "anchor"
        assert sorted(others) == ["a", "b"]
    assert found.keys() == {"a", "b"}
    assert found["a"].drift == 1.5
    assert found["a"].time_s == 3.0
    assert found["a"].usual_s == 3.0


def test_drift_within_a_group_is_the_same_for_all_of_it(clock: Clock) -> None:
    """A third of the rounds on a machine four times slower: the ratio of two is exact."""
    start = clock.now
    runner = FakeRunner(
        clock, {"a": 0.01, "b": 0.03}, slow=lambda now: 4.0 if now - start > 0.27 else 1.0
    )
    found = run(runner, "a", "b", effort=Effort(warmups=1, repeats=9))
    assert len({*found["a"].runs_s}) == 2  # it did drift
    assert found["b"].time_s / found["a"].time_s == pytest.approx(3.0)


def test_an_anchor_that_fails_is_done_without(clock: Clock) -> None:
    runner = FakeRunner(clock, fails={("anchor", "run"): "broken"}, slow=lambda now: 2.0)
    found = run(runner, "a", anchor=Anchor("anchor", 1.0))
    assert found["a"].drift == 1.0
    assert found["a"].runs_s == (2.0,) * 4
    assert runner.ran().count("anchor") <= 2


def test_cut_off_after_two_runs(clock: Clock) -> None:
    runner = FakeRunner(clock, {"slow": 3.1, "fine": 2.9}, first={"slow": 5.0, "fine": 5.0})
    found = run(runner, "slow", "fine", limits={"slow": 3.0, "fine": 3.0})
    assert found["slow"].stopped_early
    assert found["slow"].runs_s == (3.1, 3.1)  # the first run loads: it is no witness
    assert found["slow"].at_least_s == 3.1
    assert found["slow"].shares is None
    assert runner.ran().count("slow") == 3
    assert not found["fine"].stopped_early
    assert len(found["fine"].runs_s) == 4
    assert runner.calls[-1] == ("time_shares", ("fine",))


def test_one_slow_run_is_no_reason_to_give_up(clock: Clock) -> None:
    def slow(now: float) -> float:
        return 10.0 if len(runner.calls) % 2 else 1.0

    runner = FakeRunner(clock, slow=slow)
    found = run(runner, "a", limits={"a": 3.0})
    assert not found["a"].stopped_early


def test_a_slow_machine_is_no_reason_to_give_up(clock: Clock) -> None:
    """All takes five times as long: what is twice as slow as the best stays that."""
    runner = FakeRunner(clock, {"a": 2.0, "b": 4.0, "anchor": 1.0}, slow=lambda now: 5.0)
    limits = {"a": 3.0, "b": 3.0}
    found = run(runner, "a", "b", anchor=Anchor("anchor", 1.0), limits=limits)
    assert not found["a"].stopped_early
    assert found["a"].time_s == 2.0
    assert found["b"].stopped_early
    assert found["b"].at_least_s == 4.0


def test_no_anchor_for_nothing(clock: Clock) -> None:
    runner = FakeRunner(clock, {"a": 9.0, "anchor": 1.0}, fails={("b", "run"): "broken"})
    run(runner, "a", "b", anchor=Anchor("anchor", 1.0), limits={"a": 3.0}, effort=Effort())
    assert runner.ran().count("anchor") == 2  # to warm it, and to know the drift
    assert runner.calls[-1] != ("time_shares", ())


def test_a_program_that_fails_when_it_runs(clock: Clock) -> None:
    runner = FakeRunner(clock, fails={("b", "run"): "out of memory: 9 GiB"})
    found = run(runner, "a", "b", "c")
    assert found["b"] == Measurement("b", "", failed="out of memory: 9 GiB")
    assert runner.ran().count("b") == 1
    assert len(found["a"].runs_s) == len(found["c"].runs_s) == 4
    assert runner.calls[-1] == ("time_shares", ("a", "c"))


@pytest.mark.parametrize("rounds", [0.5, 1, 2, 3, 4.5])
def test_too_little_time(clock: Clock, rounds: float) -> None:
    """Nothing starts after the deadline."""
    runner = FakeRunner(clock)
    start = clock.now
    with pytest.raises(OutOfTime):
        run(runner, "a", "b", budget_s=2 * rounds)
    assert clock.now - start <= 2 * rounds
    assert runner.calls[-1][0] == "run"  # not traced


def test_few_runs_are_enough_at_the_deadline(clock: Clock) -> None:
    runner = FakeRunner(clock, {"a": 1.0, "b": 3.0})
    start = clock.now
    found = run(runner, "a", "b", effort=Effort(warmups=2, repeats=10), budget_s=4 * 5.5)
    assert [len(found[key].runs_s) for key in "ab"] == [5, 3], "no run of b would end in time"
    assert clock.now - start == 22
    assert runner.calls[-1][0] == "time_shares"
    assert found["b"].time_s == 3.0


def test_steps_there_is_no_time_for_are_left_out(clock: Clock) -> None:
    """Warming up takes 6.4 of 21.4 s; then the four turns of each take 4, 8, 12 and 1.6."""
    runner = FakeRunner(clock, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.2})
    effort = Effort(warmups=1, repeats=10, follows=True)
    found = run(runner, "a", "b", "c", "d", effort=effort, budget_s=21.4)
    assert [*found] == ["a", "b", "d"]
    assert all(len(found[key].runs_s) >= 3 for key in found)
    assert "c" not in runner.ran()[8:]


def test_the_first_step_is_not_left_out(clock: Clock) -> None:
    runner = FakeRunner(clock, {"a": 1.0, "b": 2.0})
    with pytest.raises(OutOfTime):
        run(runner, "a", "b", effort=Effort(warmups=1, repeats=9, follows=True), budget_s=5.0)


def test_what_is_cut_or_failed_at_the_deadline_is_known(clock: Clock) -> None:
    runner = FakeRunner(clock, {"a": 9.0}, fails={("b", "run"): "broken"})
    found = run(runner, "a", "b", limits={"a": 3.0}, budget_s=27)
    assert found["a"].stopped_early
    assert found["b"].failed == "broken"


def test_patience_grows_with_what_was_seen(clock: Clock) -> None:
    patience: list[float] = []

    class Watched(FakeRunner):
        def run(self, key: str, timeout_s: float) -> Any:
            patience.append(timeout_s)
            return super().run(key, timeout_s)

    runner = Watched(clock, {"a": 1.0, "b": 100.0})
    run(runner, "a", "b", effort=Effort(warmups=1, repeats=3, hang_s=30))
    assert patience[:2] == [30, 30]
    assert all(seconds > 100 for seconds in patience[2:])
