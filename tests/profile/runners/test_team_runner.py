"""A runner over several processes: the slowest counts, one failure is everyone's, nothing hangs."""

from __future__ import annotations

import threading
import time

import pytest

from cfp.cluster import TeamLost
from cfp.cluster.team import Over
from cfp.profile.runners import shared_decision, team_runner
from cfp.profile.runners.job import Compiled, Failed, Memory, Shares
from cfp.profile.runners.messages import Ask, Lost, Open, Run, Stopped, Submit
from cfp.profile.runners.runner import RunnerLost
from cfp.profile.runners.team_runner import TeamRunner
from tests.cluster.fakes import Scripted, compile_all, job, make_team, team_of
from tests.cluster.test_connection import connect_pair


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_runner, "GRACE_S", 0.5)


def test_the_slowest_process_counts() -> None:
    with team_of([{"a": 1.0}, {"a": 3.0}, {"a": 2.0}]) as (runner, _, log, _links):
        (compiled,) = compile_all(runner, "a")
        assert compiled == Compiled("a", 3.0, Memory(3, 2, 3, 0))  # the slowest, the largest
        assert runner.run("a", 5) == 3.0
        assert runner.time_shares(["a"], 5) == {"a": Shares(2.0, 2.0, 0.0)}
        assert sorted(log) == ["0 a", "1 a", "2 a", "start 0", "start 1", "start 2"]


def test_programs_run_in_one_order_everywhere() -> None:
    with team_of([{}, {}]) as (runner, _, log, _links):
        compile_all(runner, "a", "b")
        for key in ("a", "b", "b", "a"):
            runner.run(key, 5)
        for process in "01":
            ran = [line for line in log if line.startswith(process)]
            assert ran == [f"{process} {key}" for key in ("a", "b", "b", "a")]


def test_what_fails_in_one_process_has_failed() -> None:
    scripts = [{}, {"a@compile": Failed("a", "no way"), "b": Failed("b", "out of memory")}]
    scripts[0]["b"] = Failed("b", "out of memory")
    with team_of(scripts) as (runner, _, _log, _links):
        compiled = {answer.key: answer for answer in compile_all(runner, "a", "b")}
        assert compiled["a"] == Failed("a", "process 1 on box1: no way")
        assert runner.run("b", 5) == Failed("b", "out of memory")


def test_one_fails_and_the_others_wait_for_it() -> None:
    """Out of memory on one host: the others are in a collective that never ends."""
    with team_of([{"a": "hang"}, {"a": Failed("a", "out of memory")}]) as (runner, _, log, _links):
        compile_all(runner, "a", "b")
        with pytest.raises(RunnerLost, match="process 1 on box1: out of memory") as lost:
            runner.run("a", 60)
        assert lost.value.during == ("a",)
        compile_all(runner, "b")  # and it goes on, with new workers everywhere
        assert runner.run("b", 5) == 2.0
        assert log.count("start 0") == log.count("start 1") == 2


def test_a_worker_that_dies_is_named_and_all_start_anew() -> None:
    dies = RunnerLost("the worker was killed by signal 9 (SIGKILL)", ["a"], outside=True)
    with team_of([{"a": "hang"}, {}, {"a": dies}]) as (runner, _, log, _links):
        compile_all(runner, "a")
        with pytest.raises(RunnerLost, match=r"process 2 on box2: .*SIGKILL") as lost:
            runner.run("a", 60)
        assert lost.value.during == ("a",)
        assert lost.value.outside
        compile_all(runner, "b")
        assert runner.run("b", 5) == 3.0
        assert log.count("start 1") == 2


def test_a_hung_collective_ends_in_time() -> None:
    with team_of([{"a": "hang"}, {"a": "hang"}]) as (runner, _, _log, _links):
        compile_all(runner, "a")
        with pytest.raises(RunnerLost, match="hung"):
            runner.run("a", 0.5)


def test_a_process_that_does_not_answer_hangs() -> None:
    """The end of the budget may have cut the wait short, so it is not held against the program."""
    with team_of([{}, {"a": "silent"}]) as (runner, _, _log, _links):
        compile_all(runner, "a")
        with pytest.raises(RunnerLost, match="no answer from process 1 on box1") as lost:
            runner.run("a", 0.2)
        assert lost.value.hung


def test_workers_that_do_not_start_within_the_budget() -> None:
    """No process waits longer than that for its own."""
    with team_of([{}, {"start": "hang"}]) as (runner, _, log, _links):
        runner.ends = time.monotonic() + 0.3
        with pytest.raises(RunnerLost, match="did not start before the budget ended") as lost:
            runner.submit(job("a"))
        assert (lost.value.hung, lost.value.outside) == (True, True)
        assert log.count("start 1") == 1


def test_a_process_that_is_gone_is_named_with_the_program() -> None:
    with team_of([{"a": "hang"}, {"a": "hang"}, {"a": "hang"}]) as (runner, _, _log, connections):
        compile_all(runner, "a")
        connections[2].close()
        with pytest.raises(TeamLost) as lost:
            runner.run("a", 60)
        assert str(lost.value) == (
            "Lost process 2 on box2 while running program a: it ended. What was measured is kept: "
            "start all processes again to go on."
        )


def test_what_an_earlier_campaign_left_is_not_heard() -> None:
    """Its workers were ended while they compiled, and said so when nobody listened any more."""
    with team_of([{}, {}]) as (runner, team, _log, _links):
        compile_all(runner, "a")
        runner.close()
        left = Lost(1, "the worker was killed by signal 9", ("a",), hung=False, outside=True)
        team.inbox.from_(1)(left)
        team.inbox.from_(1)(Stopped(1, "the devices are gone"))
        again = TeamRunner(team, lambda opened: Scripted(0, {}, []))
        compile_all(again, "b")
        assert again.run("b", 5) == 2.0
        again.close()


def test_the_leaders_last_words_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower whose worker is ended meanwhile hears why, though it cannot answer any more."""
    ours, theirs = connect_pair()
    follower = make_team(2, ("box0", "box1", "box2"), {0: theirs})
    ours.start(lambda message: None)
    runner = Scripted(2, {"a": "hang"}, [])
    monkeypatch.setattr(shared_decision, "open_runner", lambda *given: runner)
    said: list[BaseException] = []

    def follow() -> None:
        try:
            shared_decision.follow(follower, None, None)  # type: ignore[arg-type]
        except TeamLost as lost:
            said.append(lost)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    ours.send(Open(1, 1, None))
    ours.send(Submit(job("a")))
    ours.send(Ask(2, Run("a"), 60.0))
    ours.send(Over("Lost process 1 on box1 while running program a: it ended.", lost=True))
    ours.close()
    thread.join(10)
    assert [str(one) for one in said] == [
        "Lost process 1 on box1 while running program a: it ended."
    ]
