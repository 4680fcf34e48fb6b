"""What is compiled when, what is done after a loss, and what is in the store at every moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfp.errors import CfpError
from cfp.profile import api
from cfp.profile.measure import campaign as module
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.rounds import Effort, OutOfTime
from cfp.profile.measure.store import Store, StoreWarning
from cfp.profile.runners.job import Compiled, Failed
from cfp.profile.runners.local_devices import default_threads
from tests.profile.fake_runner import (
    MACHINE,
    MEMORY,
    Call,
    Clock,
    FakeRunner,
    Heard,
    clock,
    new_campaign,
    request,
    requests,
    stored,
)

__all__ = ["clock"]


def at_run(key: str, which: Sequence[int] = ()) -> Callable[[Call, Sequence[Call]], str | None]:
    """Loses the runner when that program runs: always, or the given times (0 is the first)."""

    def loses(call: Call, calls: Sequence[Call]) -> str | None:
        hit = call == ("run", (key,))
        return f"{key} crashed" if hit and (not which or calls.count(call) in which) else None

    return loses


def kinds(runner: FakeRunner) -> list[str]:
    """`submit a b, run a b` in the order of the calls; what repeats is left out."""
    shown: list[str] = []
    for kind, keys in runner.calls:
        if kind in ("submit", "run") and f"{kind} {keys[0]}" not in shown:
            shown.append(f"{kind} {keys[0]}")
    return shown


def test_all_is_measured_stored_and_known(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, {"a": 1.0, "b": 2.0, "c": 3.0})
    heard = Heard()
    campaign = new_campaign(runner, tmp_path, progress=heard)
    campaign.measure(requests("a", "b", "c"))
    assert {key: found.time_s for key, found in campaign.known.items()} == runner.times
    assert campaign.known["a"].memory == MEMORY
    assert campaign.known["a"].compile_s == 0.5
    assert campaign.known["a"].name == "a"
    assert stored(tmp_path) == campaign.known
    assert (campaign.compiled, campaign.compile_s, campaign.loaded) == (3, 1.5, 0)
    assert runner.there == set()  # all dropped
    assert heard.expected == [3]
    assert heard.measurements == list(campaign.known.values())
    with Store.open(tmp_path) as store:
        assert {record.environment for record in store.entries()} == {MACHINE.show()}


def test_asked_again_nothing_is_done(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock)
    first = new_campaign(runner, tmp_path)
    first.measure(requests("a", "b", "a"))
    assert runner.submitted() == ["a", "b"]
    first.measure(requests("b", "a"))
    assert runner.submitted() == ["a", "b"]
    assert first.loaded == 0

    idle = FakeRunner(clock)
    second = new_campaign(idle, tmp_path)
    second.measure(requests("b", "a"))
    assert idle.calls == []
    assert (second.compiled, second.loaded) == (0, 2)
    assert second.known == first.known
    second.measure(requests("a", "c"))
    assert idle.submitted() == ["c"]


BAD: dict[str, dict[str, Any]] = {
    "missing": {"runs_s": None},
    "text": {"runs_s": ["fast"]},
    "none": {"runs_s": []},
    "endless": {"runs_s": [float("inf")]},
    "backwards": {"runs_s": [-1.0]},
    "nan": {"drift": float("nan")},
    "no drift": {"drift": 0.0},
    "huge": {"compile_s": 10**400},
    "no memory": {"memory": None},
    "memory": {"memory": {"argument_bytes": -1}},
    "shares": {"shares": [1, 2, 3, 4]},
    "reason": {"failed": 7},
    "another's": {"key": "b"},
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_what_is_no_measurement_is_made_again(
    clock: Clock, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """It does not matter who put it into the store, with a digest that is right."""
    new_campaign(FakeRunner(clock), tmp_path).measure(requests("a", "b"))
    good = stored(tmp_path)
    with Store.open(tmp_path) as store:
        (record,) = store.get_many(["a"]).values()
        store.put(replace(record, document={**record.document, **changes}))
    runner = FakeRunner(clock)
    campaign = new_campaign(runner, tmp_path)
    said = r"1 measurement is ignored in .*measurements.sqlite and made again, .* \(a: .+\)"
    with pytest.warns(StoreWarning, match=said):
        campaign.measure(requests("a", "b"))
    assert runner.submitted() == ["a"]
    assert (campaign.loaded, campaign.known) == (1, good)
    assert stored(tmp_path) == good


def test_together_means_in_turn(clock: Clock, tmp_path: Path) -> None:
    """What was measured without the others is measured again, but for what does not run."""
    first = new_campaign(FakeRunner(clock, fails={("bad", "run"): "no"}), tmp_path)
    first.measure(requests("a", "b", "bad"))
    runner = FakeRunner(clock)
    second = new_campaign(runner, tmp_path, effort=Effort(wave=4))
    second.measure(requests("a", "bad"), together=True)
    assert runner.calls == []
    second.measure(requests("a", "b", "bad", "c"), together=True)
    assert runner.submitted() == ["a", "b", "c"]
    assert sorted(runner.ran()[-3:]) == ["a", "b", "c"]
    assert second.known["bad"].failed == "no"
    assert second.known.keys() == {"a", "b", "c", "bad"}


def test_together_goes_on_without_what_compiles_too_long(clock: Clock, tmp_path: Path) -> None:
    """One program a second: in half of eight there are four."""

    class Slow(FakeRunner):
        def finished(self, timeout_s: float) -> list[Compiled | Failed]:
            later, self.pending = self.pending[1:], self.pending[:1]
            done = super().finished(timeout_s)
            self.pending = later
            return done

        def drop(self, keys: Sequence[str]) -> None:
            super().drop(keys)
            self.pending = [key for key in self.pending if key not in keys]

    runner = Slow(clock, dict.fromkeys("abcdefg", 0.1), compile_s=1.0)
    effort = Effort(warmups=2, repeats=4, wave=7)
    campaign = new_campaign(runner, tmp_path, effort=effort, budget_s=8.0)
    campaign.measure(requests(*"abcdefg"), together=True)
    assert campaign.known.keys() == set("abcd") == set(runner.ran())
    assert not runner.pending
    with pytest.raises(OutOfTime):  # what runs in its own time is waited for
        new_campaign(runner, tmp_path, effort=effort, budget_s=2.5).measure(requests(*"efg"))


def test_together_goes_on_without_what_runs_too_long(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, {"a": 1.0, "b": 10.0, "c": 1.0}, compile_s=0.0)
    effort = Effort(warmups=1, repeats=6, wave=3, follows=True)
    campaign = new_campaign(runner, tmp_path, effort=effort, budget_s=50.0)
    campaign.measure(requests(*"abc"), together=True)
    assert campaign.known.keys() == set("ac") == stored(tmp_path).keys()


def test_without_overlap_nothing_compiles_while_others_run(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock)
    new_campaign(runner, tmp_path, overlap=False).measure(requests(*"abcd"))
    assert kinds(runner) == (
        ["submit a", "submit b", "run a", "run b", "submit c", "submit d", "run c", "run d"]
    )


@pytest.mark.parametrize(("platform", "overlap"), [("cpu", False), ("gpu", False), ("tpu", True)])
def test_where_a_compiler_leaves_the_devices_alone(
    clock: Clock, tmp_path: Path, platform: str, overlap: bool
) -> None:
    """On a GPU it tries kernels; several programs are compiled in the time of one there."""
    machine = replace(MACHINE, platform=platform)
    made = api.new_campaign(machine, FakeRunner(clock), Store.open(tmp_path), api.Manner())
    assert made.overlap is overlap
    assert made.budget.abreast == (1 if platform == "cpu" else default_threads(platform))


def test_with_overlap_the_next_wave_compiles_first(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock)

    class Slow(FakeRunner):
        """Has the next wave still under way while the first one runs."""

        def finished(self, timeout_s: float) -> list[Compiled | Failed]:
            later = self.pending[2:]
            self.pending = self.pending[:2]
            done = super().finished(timeout_s)
            self.pending = later
            return done

    runner = Slow(clock)
    campaign = new_campaign(runner, tmp_path, overlap=True)
    campaign.measure(requests(*"abcdef"))
    assert kinds(runner) == [
        *("submit a", "submit b", "submit c", "submit d", "run a", "run b"),
        *("submit e", "submit f", "run c", "run d", "run e", "run f"),
    ]
    assert len(runner.submitted()) == 6
    assert stored(tmp_path).keys() == {*"abcdef"}
    first = runner.calls.index(("finished", tuple("ab")))  # what the compiler is waited for with
    assert [keys for kind, keys in runner.calls[:first] if kind == "submit"] == [
        *(("a",), ("b",), ("c",), ("d",))
    ]


def test_what_it_takes_to_start_a_program_is_removed(clock: Clock, tmp_path: Path) -> None:
    base, each = 0.5, 0.25
    times = {"few": base + 4 * each, "many": base + 128 * each, "a": 7.0 + base + 6 * each}
    campaign = new_campaign(FakeRunner(clock, times), tmp_path)
    campaign.set_overhead(request("few", arguments=4), request("many", arguments=128))
    assert campaign.running.each_s == pytest.approx(each)
    assert campaign.running.base_s == pytest.approx(base)
    campaign.measure([request("a", arguments=6)])
    assert campaign.known["a"].overhead_s == pytest.approx(base + 6 * each)
    assert campaign.known["a"].time_s == pytest.approx(7.0)
    again = new_campaign(FakeRunner(clock, times), tmp_path)
    again.set_overhead(request("few", arguments=4), request("many", arguments=128))
    assert (again.running.base_s, again.running.each_s) == (
        campaign.running.base_s,
        campaign.running.each_s,
    )


@pytest.mark.parametrize(("few", "many"), [(2.0, 1.0), (1.0, 50.0)])
def test_starting_never_takes_less_than_nothing(
    clock: Clock, tmp_path: Path, few: float, many: float
) -> None:
    campaign = new_campaign(FakeRunner(clock, {"few": few, "many": many, "a": 0.01}), tmp_path)
    campaign.set_overhead(request("few", arguments=4), request("many", arguments=128))
    campaign.measure([request("a", arguments=6)])
    assert campaign.running.base_s >= 0
    assert campaign.running.each_s >= 0
    assert campaign.known["a"].time_s == 0.0


def test_overhead_that_cannot_be_measured_is_none(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, fails={("few", "compile"): "no"})
    campaign = new_campaign(runner, tmp_path)
    campaign.set_overhead(request("few", arguments=4), request("many", arguments=128))
    assert (campaign.running.base_s, campaign.running.each_s) == (0.0, 0.0)


def test_a_machine_that_slows_down_between_waves(clock: Clock, tmp_path: Path) -> None:
    """The same program, measured early and late, takes the same; so do reloaded anchors."""
    slow = {"now": 1.0}
    times = {"anchor": 2.0, "early": 5.0, "late": 5.0, "later": 5.0}
    runner = FakeRunner(clock, times, slow=lambda now: slow["now"])
    campaign = new_campaign(runner, tmp_path)
    campaign.set_anchor(request("anchor"))
    campaign.measure([request("early")])
    slow["now"] = 2.0
    campaign.measure([request("late")])
    assert campaign.known["late"].runs_s == (10.0,) * 4
    assert campaign.known["late"].drift == 2.0
    assert campaign.known["late"].time_s == campaign.known["early"].time_s == 5.0
    slow["now"] = 0.5
    another = new_campaign(FakeRunner(clock, times, slow=lambda now: 0.5), tmp_path)
    another.set_anchor(request("anchor"))
    another.measure([request("later")])
    assert another.known["later"].time_s == 5.0
    assert runner.submitted().count("anchor") <= 2  # kept from wave to wave


def test_times_are_those_of_the_machine_as_it_usually_is(clock: Clock, tmp_path: Path) -> None:
    """They are not those of the moment when the anchor was measured; what is measured or loaded
    later agrees."""
    slow = {"now": 2.0}
    times = {"anchor": 2.0, "a": 5.0, "b": 6.0, "c": 7.0, "d": 8.0}

    def start() -> module.Campaign:
        campaign = new_campaign(FakeRunner(clock, times, slow=lambda now: slow["now"]), tmp_path)
        campaign.set_anchor(request("anchor"))
        return campaign

    campaign = start()
    for key, now in (("a", 1.0), ("b", 1.0), ("c", 1.1)):
        slow["now"] = now
        campaign.measure([request(key)])
    assert campaign.known["a"].time_s == 10.0
    before = {key: found.time_s for key, found in campaign.known.items()}
    campaign.settle()
    after = {key: found.time_s for key, found in campaign.known.items()}
    assert after["a"] == pytest.approx(5.0 * 1.05)  # between the speeds of the two
    assert {key: after[key] / before[key] for key in after} == pytest.approx(
        dict.fromkeys(after, 0.525)
    )
    slow["now"] = 3.0
    campaign.measure([request("d")])
    assert campaign.known["d"].time_s == pytest.approx(8.0 * 1.05)
    campaign.settle()
    again = start()
    again.measure([request(key) for key in "abcd"])
    again.settle()
    times_s = {key: found.time_s for key, found in campaign.known.items()}
    assert {key: found.time_s for key, found in again.known.items()} == pytest.approx(times_s)


def test_one_that_does_not_compile(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, fails={("b", "compile"): "unsupported"})
    campaign = new_campaign(runner, tmp_path)
    campaign.measure(requests("a", "b", "c"))
    assert campaign.known["b"] == Measurement("b", "b", failed="unsupported")
    assert "b" not in runner.ran()
    assert stored(tmp_path) == campaign.known
    assert [campaign.known[key].failed for key in "ac"] == [None, None]


def test_clearly_slower_than_the_best_of_its_group(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, {"best": 1.0, "twice": 2.0, "slow": 4.0, "other": 4.0})
    campaign = new_campaign(runner, tmp_path, effort=Effort(warmups=2, repeats=4, wave=1))
    campaign.measure([*requests("best", "twice", "slow", group="g"), request("other", "h")])
    assert {key: found.stopped_early for key, found in campaign.known.items()} == (
        {"best": False, "twice": False, "slow": True, "other": False}
    )
    assert runner.ran().count("slow") == 3
    assert runner.ran().count("twice") == 6
    assert stored(tmp_path)["slow"].at_least_s == 4.0


def test_the_best_may_come_from_the_store(clock: Clock, tmp_path: Path) -> None:
    new_campaign(FakeRunner(clock), tmp_path).measure(requests("best", group="g"))
    campaign = new_campaign(FakeRunner(clock, {"slow": 4.0}), tmp_path)
    campaign.measure(requests("best", "slow", group="g"))
    assert campaign.known["slow"].stopped_early


def test_what_starting_takes_makes_nothing_slow(clock: Clock, tmp_path: Path) -> None:
    """The best takes nothing but its start: what takes no more than a start is not slow."""
    times = {"few": 1.0, "many": 1.0, "best": 0.9, "twice": 1.9, "slow": 3.1}
    campaign = new_campaign(FakeRunner(clock, times), tmp_path)
    campaign.set_overhead(request("few", arguments=4), request("many", arguments=128))
    for key in ("best", "twice", "slow"):
        campaign.measure([request(key, "g")])
    assert campaign.known["best"].time_s == 0.0
    assert not campaign.known["twice"].stopped_early
    assert campaign.known["slow"].stopped_early


def test_killed_once_the_set_is_the_same(clock: Clock, tmp_path: Path) -> None:
    """Whichever call of a campaign it is killed at, nothing is lost, and nothing fails."""
    keys = [*"abcd"]
    plain = FakeRunner(clock)
    new_campaign(plain, tmp_path / "plain").measure(requests(*keys))
    for position in range(len(plain.calls)):
        runner = FakeRunner(
            clock,
            loses=lambda call, calls, at=position: "killed" if len(calls) == at else None,
        )
        heard = Heard()
        folder = tmp_path / str(position)
        campaign = new_campaign(runner, folder, progress=heard)
        campaign.measure(requests(*keys))
        assert stored(folder) == campaign.known
        assert {key: found.failed for key, found in campaign.known.items()} == (
            dict.fromkeys(keys)
        ), position
        assert [len(found.runs_s) for found in campaign.known.values()] == [4] * 4
        assert heard.lost_for == ["killed"]
        assert len(runner.submitted()) <= 4 + 2 + 1  # a wave again, and one that was cut short
        assert len(heard.measurements) == 4


def test_a_program_that_always_kills_the_runner(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, loses=at_run("b"))
    heard = Heard()
    effort = Effort(warmups=2, repeats=4, wave=4)
    campaign = new_campaign(runner, tmp_path, effort=effort, progress=heard)
    campaign.measure(requests(*"abcdef"))
    assert campaign.known["b"] == Measurement("b", "b", failed="b crashed")
    assert stored(tmp_path) == campaign.known
    assert campaign.known.keys() == {*"abcdef"}
    assert all(found.failed is None for key, found in campaign.known.items() if key != "b")
    assert heard.lost_for == ["b crashed"] * 2
    assert runner.ran().count("b") == 2
    second = runner.calls.index(("run", ("b",)), runner.calls.index(("run", ("b",))) + 1)
    since = max(i for i, call in enumerate(runner.calls[:second]) if call[0] == "submit")
    assert runner.calls[since - 1][0] == "run"  # alone: nothing else was given to that runner


def test_killed_from_outside_a_program_is_tried_again_in_the_next_run(
    clock: Clock, tmp_path: Path
) -> None:
    """Where one end was its own doing and another was not, nobody knows either; the store has
    nothing of it."""
    for number, ends in enumerate(([True, True], [True, False], [False, True])):
        folder = tmp_path / str(number)
        runner = FakeRunner(clock)

        def loses(
            call: Call, calls: Sequence[Call], runner: FakeRunner = runner, ends: list[bool] = ends
        ) -> str | None:
            if call != ("run", ("b",)):
                return None
            runner.outside = ends[calls.count(call)]
            return "the worker was killed by signal 9 (SIGKILL)"

        runner.loses = loses
        heard = Heard()
        campaign = new_campaign(runner, folder, progress=heard)
        campaign.measure(requests("a", "b", "c"))
        why = campaign.known["b"].failed
        assert why is not None
        assert why.startswith("the worker was killed by signal 9 (SIGKILL), which may not be the ")
        assert why.endswith("the next run tries it again")
        assert campaign.passing == {"b"}
        assert stored(folder).keys() == {"a", "c"}
        assert campaign.known["b"] in heard.measurements
        campaign.measure(requests("b"))  # in this run it stays failed
        assert runner.ran().count("b") == 2

        again = new_campaign(FakeRunner(clock), folder)
        again.measure(requests("a", "b", "c"))
        assert again.known["b"].failed is None
        assert again.loaded == 2


def test_one_that_kills_the_runner_when_traced(clock: Clock, tmp_path: Path) -> None:
    """All of the wave are under suspicion; alone, the others are cleared."""

    def loses(call: Call, calls: Sequence[Call]) -> str | None:
        return "crashed" if call[0] == "time_shares" and "b" in call[1] else None

    campaign = new_campaign(FakeRunner(clock, loses=loses), tmp_path)
    campaign.measure(requests("a", "b", "c"))
    assert {key: found.failed for key, found in campaign.known.items()} == (
        {"a": None, "b": "crashed", "c": None}
    )


def test_every_program_kills_the_runner(clock: Clock, tmp_path: Path) -> None:
    """The campaign does not give up: it records each failure."""
    runner = FakeRunner(clock, loses=lambda call, calls: "bad" if call[0] == "run" else None)
    campaign = new_campaign(runner, tmp_path, effort=Effort(wave=4))
    campaign.measure(requests(*"abcdefghij"))
    assert {found.failed for found in campaign.known.values()} == {"bad"}
    assert stored(tmp_path).keys() == {*"abcdefghij"}


def test_a_crash_of_the_wave_that_compiles_ahead(clock: Clock, tmp_path: Path) -> None:
    """Who was running then is blamed with it, and cleared."""

    class Ahead(FakeRunner):
        """What was submitted while others run takes effect at the next run."""

        def finished(self, timeout_s: float) -> list[Compiled | Failed]:
            ahead = [key for key in self.pending if "bad" in self.pending and key not in "ab"]
            if ahead and "a" not in self.pending and "b" not in self.pending:
                self._call("crash", ahead, ahead)
            later, self.pending = ahead, [key for key in self.pending if key not in ahead]
            done = super().finished(timeout_s)
            self.pending = later
            return done

    def loses(call: Call, calls: Sequence[Call]) -> str | None:
        if call[0] == "crash" or (call[0] == "run" and "bad" in runner.pending):
            return "bad crashed"
        return None

    runner = Ahead(clock, loses=loses)
    heard = Heard()
    campaign = new_campaign(runner, tmp_path, overlap=True, progress=heard)
    campaign.measure(requests("a", "b", "bad", "d"))
    assert {key: found.failed for key, found in campaign.known.items()} == (
        {"a": None, "b": None, "bad": "bad crashed", "d": None}
    )
    assert len(heard.lost_for) == 4  # while a ran, while b ran, and twice by itself


def test_lost_again_and_again(clock: Clock, tmp_path: Path) -> None:
    """No program is to blame: what was measured is kept, and the message says so."""
    heard = Heard()
    runner = FakeRunner(clock)
    campaign = new_campaign(runner, tmp_path, progress=heard)
    campaign.measure(requests("a"))
    runner.loses = lambda call, calls: "no devices" if call[0] == "submit" else None
    with pytest.raises(CfpError, match=r"lost \d times in a row \(no devices\).*is kept") as raised:
        campaign.measure(requests("b", "c"))
    assert raised.value.__cause__ is None
    assert 3 <= len(heard.lost_for) <= module.LOSSES
    assert stored(tmp_path).keys() == {"a"}


def test_lost_after_each_wave(clock: Clock, tmp_path: Path) -> None:
    """What is written by then is not done again, however often it happens."""
    runner = FakeRunner(clock, loses=lambda call, calls: "gone" if call[0] == "drop" else None)
    campaign = new_campaign(runner, tmp_path, effort=Effort(warmups=1, repeats=1, wave=1))
    keys = [f"k{i}" for i in range(module.LOSSES - 1)]
    campaign.measure(requests(*keys))
    assert runner.submitted() == keys
    assert stored(tmp_path) == campaign.known


def test_an_anchor_that_kills_the_runner(clock: Clock, tmp_path: Path) -> None:
    """Once, it is kept. Twice, what is left is measured without it."""
    for times, drift in ((1, 2.0), (2, 1.0)):
        slow = {"now": 1.0}
        runner = FakeRunner(clock, slow=lambda now, slow=slow: slow["now"])
        folder = tmp_path / str(times)
        campaign = new_campaign(runner, folder)
        campaign.set_anchor(request("anchor"))
        slow["now"] = 2.0
        before = runner.calls.count(("run", ("anchor",)))
        runner.loses = at_run("anchor", range(before, before + times))
        campaign.measure(requests("a", "b"))
        assert campaign.known["a"].drift == drift
        assert all(found.failed is None for found in campaign.known.values())
        assert stored(folder).keys() == {"anchor", "a", "b"}


def test_an_anchor_that_no_longer_compiles(clock: Clock, tmp_path: Path) -> None:
    new_campaign(FakeRunner(clock), tmp_path).set_anchor(request("anchor"))
    runner = FakeRunner(clock, fails={("anchor", "compile"): "no"})
    campaign = new_campaign(runner, tmp_path)
    campaign.set_anchor(request("anchor"))
    campaign.measure(requests("a"))
    assert campaign.known["a"].time_s == 1.0
    assert runner.ran().count("anchor") == 0


def test_at_the_deadline(clock: Clock, tmp_path: Path) -> None:
    """What is complete is kept, what is not is not there, and the next campaign goes on."""
    runner = FakeRunner(clock)
    campaign = new_campaign(runner, tmp_path, budget_s=2 * 6 + 7)
    start = clock.now
    with pytest.raises(OutOfTime):
        campaign.measure(requests(*"abcdef"))
    assert clock.now - start <= 2 * 6 + 8
    assert campaign.known.keys() == {"a", "b"}
    assert stored(tmp_path) == campaign.known
    assert all(len(found.runs_s) == 4 for found in campaign.known.values())
    with pytest.raises(OutOfTime):
        campaign.measure(requests("g"))
    assert "g" not in runner.submitted()
    campaign.measure(requests("b", "a"))  # what is known takes no time

    rest = FakeRunner(clock)
    another = new_campaign(rest, tmp_path)
    another.measure(requests(*"abcdef"))
    assert rest.submitted() == [*"cdef"]
    assert stored(tmp_path).keys() == {*"abcdef"}


def test_the_deadline_while_compiling(clock: Clock, tmp_path: Path) -> None:
    runner = FakeRunner(clock, compile_s=100.0)
    campaign = new_campaign(runner, tmp_path, budget_s=50)
    with pytest.raises(OutOfTime):
        campaign.measure(requests("a", "b"))
    assert runner.ran() == []
    assert stored(tmp_path) == {}


@pytest.mark.parametrize("hung", ["a", "b", "f"])
def test_a_program_that_hangs_does_not_overrun_the_budget(
    clock: Clock, tmp_path: Path, hung: str
) -> None:
    """Half of the time left is waited for it, and the rest is for the others. It is not recorded:
    with a larger budget it may turn out to be slow."""
    runner = FakeRunner(clock, dict.fromkeys("abcdef", 0.1), hangs={hung})
    campaign = new_campaign(runner, tmp_path, budget_s=20.0)
    start = clock.now
    campaign.measure(requests(*"abcdef"))
    assert clock.now - start < 20.0
    assert campaign.passing == {hung}
    why = campaign.known[hung].failed
    assert why is not None
    assert why.startswith("no answer in ")
    assert "near the end of the budget" in why
    assert stored(tmp_path).keys() == {*"abcdef"} - {hung}
    again = new_campaign(FakeRunner(clock, dict.fromkeys("abcdef", 0.1)), tmp_path)
    again.measure(requests(*"abcdef"))
    assert again.known[hung].failed is None


def test_a_hang_that_leaves_no_time(clock: Clock, tmp_path: Path) -> None:
    """Nobody is blamed, and the next budget begins with a new worker."""
    runner = FakeRunner(clock, {"a": 0.1, "b": 0.1}, hangs={"a"})
    campaign = new_campaign(runner, tmp_path, budget_s=8.0)
    start = clock.now
    with pytest.raises(OutOfTime):
        campaign.measure(requests("a", "b"))
    assert clock.now - start < 8.0
    assert (campaign.known, campaign.passing) == ({}, set())
    runner.hangs.clear()
    campaign.deadline = runner.ends = clock.now + 20.0
    campaign.measure(requests("a", "b"))
    assert stored(tmp_path).keys() == {"a", "b"}


def test_a_program_that_hangs_after_it_ran(clock: Clock, tmp_path: Path) -> None:
    """It is known to take a second: a wait for it may end late by a few, not by a minute."""

    class Late(FakeRunner):
        def run(self, key: str, timeout_s: float) -> float | Failed:
            if self.ran().count("a") == 3:
                self.hangs.add("a")
            return super().run(key, timeout_s)

    runner = Late(clock)
    campaign = new_campaign(runner, tmp_path, budget_s=20.0)
    start = clock.now
    with pytest.raises(OutOfTime):
        campaign.measure(requests("a", "b"))
    assert clock.now - start <= 20.0 + 3.0
    without = FakeRunner(clock, hangs={"a"})
    campaign = new_campaign(without, tmp_path)  # without a budget: a hang, twice, recorded
    start = clock.now
    campaign.measure(requests("a"))
    assert clock.now - start == 2 * campaign.effort.hang_s
    assert stored(tmp_path)["a"].failed == "no answer in 60 s"


def test_written_as_each_wave_ends(clock: Clock, tmp_path: Path) -> None:
    seen: list[set[str]] = []

    class Looking(FakeRunner):
        def run(self, key: str, timeout_s: float) -> float | Failed:
            seen.append({*stored(tmp_path)})
            return super().run(key, timeout_s)

    new_campaign(Looking(clock), tmp_path).measure(requests(*"abcde"))
    assert [{*"abcde"[: n // 12 * 2]} for n in range(30)] == seen


def test_two_campaigns_take_turns(tmp_path: Path) -> None:
    """One program runs at a time, and each campaign loads what the other measured."""
    clock = Clock()
    busy = threading.Lock()
    overlapped: list[str] = []

    class Alone(FakeRunner):
        def run(self, key: str, timeout_s: float) -> float | Failed:
            if not busy.acquire(blocking=False):
                overlapped.append(key)
                return 1.0
            try:
                threading.Event().wait(0.005)
                return super().run(key, timeout_s)
            finally:
                busy.release()

    keys = [*"abcdefgh"]
    runners = [Alone(clock), Alone(clock)]
    campaigns = [new_campaign(runner, tmp_path) for runner in runners]
    # a mesh of two devices and one of four share devices
    campaigns[1].machine = replace(MACHINE, mesh_shape=(4,), processes=(0,) * 4)
    orders = [keys, keys[::-1]]
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            campaigns[index].measure(requests(*orders[index]))
        except BaseException as error:  # noqa: BLE001 - for the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert overlapped == []
    assert campaigns[0].known == campaigns[1].known == stored(tmp_path)
    assert campaigns[0].known.keys() == {*keys}
    assert sum(len({*runner.ran()}) for runner in runners) == len(keys)  # none twice
    assert sum(campaign.loaded for campaign in campaigns) == len(keys)
    assert sum(campaign.progress.waited for campaign in campaigns) >= 1  # type: ignore[attr-defined]
