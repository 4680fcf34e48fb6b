"""The replay against its bounds, and against a simulation that knows only streams and events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfp.links.replay import replay
from cfp.links.schedule import Moment, Schedule, ScheduledLoop, Transfer


@dataclass(frozen=True)
class Line:
    """A network on which a collective takes a time for each byte, and one to begin."""

    latency_s: float = 0.0
    byte_s: float = 1.0

    def time_s(self, collective: str, axes: Sequence[str], size_bytes: float) -> float:
        return self.latency_s + size_bytes * self.byte_s


FREE = Line(0.0, 0.0)
TIMES = st.integers(0, 5).map(float)


@st.composite
def moments(draw: st.DrawFn, depth: int = 2) -> tuple[Moment, ...]:
    found: list[Moment] = []
    for at in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["kernel", "start", "run", "wait", "loop"]))
        started = [i for i, one in enumerate(found) if one.transfer is not None]
        compute_s = draw(TIMES)
        if kind in {"start", "run"}:
            transfer = Transfer("all-gather", ("x",), draw(st.integers(0, 5)))
            found.append(Moment(compute_s, transfer, at if kind == "run" else None))
        elif kind == "wait" and started:
            found.append(Moment(compute_s, wait=draw(st.sampled_from(started))))
        elif kind == "loop" and depth:
            loop = ScheduledLoop(draw(st.integers(1, 3)), draw(moments(depth - 1)))
            found.append(Moment(compute_s, loop=loop))
        else:
            found.append(Moment(compute_s))
    return tuple(found)


schedules = moments().map(Schedule)


def unrolled(body: tuple[Moment, ...]) -> list[tuple[str, float | object]]:
    """What the compute stream does: ("compute", seconds), ("issue", transfer), ("wait", it)."""
    found: list[tuple[str, float | object]] = []
    tickets: dict[int, object] = {}
    for at, moment in enumerate(body):
        found.append(("compute", moment.compute_s))
        if moment.transfer is not None:
            tickets[at] = [float(moment.transfer.bytes)]
            found.append(("issue", tickets[at]))
        if moment.wait is not None:
            found.append(("wait", tickets[moment.wait]))
        if moment.loop is not None:
            for _ in range(moment.loop.times):
                found += unrolled(moment.loop.body)
    return found


def simulated(schedule: Schedule) -> float:
    """Runs two streams second by second, in halves: all times are whole."""
    orders, queue, done = unrolled(schedule.moments), [], set()
    left_compute, now = 0.0, 0.0
    sending: list[list[float]] = []
    while True:
        moved = True
        while moved:  # what takes no time
            moved = False
            while left_compute == 0 and orders:
                what, value = orders[0]
                if what == "wait" and id(value) not in done:
                    break
                orders.pop(0)
                moved = True
                if what == "compute":
                    left_compute = float(value)  # type: ignore[arg-type]
                elif what == "issue":
                    queue.append(value)
                    sending.append([value[0], id(value)])  # type: ignore[index]
            while sending and sending[0][0] == 0:
                done.add(sending.pop(0)[1])
                moved = True
        if not left_compute and not sending:
            return now
        now += 0.5
        left_compute = max(left_compute - 0.5, 0.0)
        if sending:
            sending[0][0] -= 0.5


@given(schedules)
def test_the_replay_is_what_two_streams_do(schedule: Schedule) -> None:
    assert replay(schedule, Line()).time_s == simulated(schedule)


@given(schedules)
def test_bounds(schedule: Schedule) -> None:
    found = replay(schedule, Line(1.0, 0.5))
    assert max(found.compute_s, found.communication_s) <= found.time_s
    assert found.time_s <= found.compute_s + found.communication_s
    assert 0 <= found.exposed_s <= found.communication_s


@given(schedules)
def test_with_a_free_network_the_time_is_that_of_the_kernels(schedule: Schedule) -> None:
    found = replay(schedule, FREE)
    assert found.time_s == found.compute_s
    assert found.communication_s == 0
    assert found.compute_s == replay(schedule, Line()).compute_s


@given(schedules, TIMES, TIMES, TIMES, TIMES)
def test_a_slower_network_is_never_faster(
    schedule: Schedule, latency_s: float, more_s: float, byte_s: float, more_byte_s: float
) -> None:
    one = replay(schedule, Line(latency_s, byte_s))
    other = replay(schedule, Line(latency_s + more_s, byte_s + more_byte_s))
    assert one.time_s <= other.time_s
    assert one.communication_s <= other.communication_s


@given(schedules)
def test_communication_is_that_of_all_transfers(schedule: Schedule) -> None:
    sent = sum(times * transfer.bytes for transfer, times in schedule.transfers())
    assert math.isclose(replay(schedule, Line()).communication_s, sent)


def test_a_collective_hides_behind_the_kernels_between_start_and_wait() -> None:
    transfer = Transfer("all-reduce", ("x",), 4)
    hidden = Schedule((Moment(1.0, transfer), Moment(6.0, wait=0), Moment(1.0)))
    assert replay(hidden, Line()).exposed_s == 0
    shown = Schedule((Moment(1.0, transfer, wait=0), Moment(7.0)))
    assert replay(shown, Line()).exposed_s == 4


def test_what_leaves_no_device_takes_nothing() -> None:
    alone = Schedule((Moment(1.0, Transfer("all-reduce", (), 4), 0),))
    assert replay(alone, Line(10.0, 1.0)).time_s == 1.0


@pytest.mark.parametrize("times", [1, 7])
def test_a_loop_is_its_body_so_many_times(times: int) -> None:
    body = (Moment(2.0, Transfer("all-gather", ("x",), 3)), Moment(1.0, wait=0))
    looped = replay(Schedule((Moment(loop=ScheduledLoop(times, body)),)), Line())
    assert looped.time_s == times * replay(Schedule(body), Line()).time_s
