"""From runs to the time of a program, and from programs to the cost of a segment."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfp.profile.measure.costs import Cost, cost_of, cost_of_two, fixed_part
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.memory import memory_use
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.runners.job import Memory, Shares
from cfp.segments.extract import MEASURED_ITERATIONS
from tests.profile.cases import accumulating, kinds, model, two_products

FAST = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
MEMORY = Memory(10**6, 1000, 500, 700)


def measurement(*runs_s: float, **rest: object) -> Measurement:
    return Measurement("key", "name", runs_s, memory=MEMORY, **rest)  # type: ignore[arg-type]


seconds = st.floats(0, 1e3, allow_nan=False)
counts = st.integers(0, 2**50)
measurements = st.builds(
    Measurement,
    key=st.text(),
    name=st.text(),
    runs_s=st.lists(seconds, max_size=5).map(tuple),
    drift=st.floats(0.1, 10),
    overhead_s=seconds,
    stopped_early=st.booleans(),
    compile_s=seconds,
    memory=st.none() | st.builds(Memory, counts, counts, counts, counts),
    shares=st.none() | st.builds(Shares, seconds, seconds, seconds),
    failed=st.none() | st.text(),
)


@settings(FAST, max_examples=100)
@given(measurements.filter(lambda m: m.failed is not None or (m.runs_s and m.memory is not None)))
def test_measurements_survive_json(found: Measurement) -> None:
    again = Measurement.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert isinstance(again.runs_s, tuple)
    assert hash(again) == hash(found)


def test_a_failed_measurement_says_why_and_nothing_else() -> None:
    found = Measurement("key", "name", failed="RESOURCE_EXHAUSTED: out of memory")
    again = Measurement.from_json(json.loads(json.dumps(found.to_json())))
    assert again.failed == "RESOURCE_EXHAUSTED: out of memory"
    assert again.memory is None
    assert again.split() is None
    assert again.spread_s == 0


def test_time_is_the_median_without_drift_and_overhead() -> None:
    found = measurement(5.0, 3.0, 40.0, drift=2.0, overhead_s=0.5)
    assert found.usual_s == 2.5
    assert found.time_s == 2.0
    assert found.at_least_s == 1.0
    assert measurement(1.0, 3.0).time_s == 2.0
    slow_to_start = measurement(0.2, 0.3, overhead_s=0.4)
    assert slow_to_start.time_s == slow_to_start.at_least_s == 0.0


def test_spread_is_half_of_the_middle_half() -> None:
    assert measurement(1.0, 2.0, 3.0, 4.0, 5.0).spread_s == 1.0  # quartiles 2 and 4
    assert measurement(1.0, 2.0, 3.0, 4.0, 5.0, drift=4.0).spread_s == 0.25
    assert measurement(1.0, 2.0, 3.0, 4.0, 500.0).spread_s == 1.0
    assert measurement(7.0).spread_s == 0.0


@settings(FAST, max_examples=100)
@given(measurements.filter(lambda m: m.runs_s))
def test_definitions_hold_of_any(found: Measurement) -> None:
    assert 0 <= found.at_least_s <= found.time_s <= max(found.runs_s) / found.drift
    assert 0 <= found.spread_s <= (max(found.runs_s) - min(found.runs_s)) / found.drift + 1e-9
    split = found.split()
    if split is not None:
        total = split.compute_s + split.transfer_s + split.waiting_s
        assert total == pytest.approx(found.time_s, abs=1e-9)


def cost(*measured: Measurement, kind: Kind | None = None) -> Cost:
    kind = kinds(two_products())[0] if kind is None else kind
    return cost_of(kind, kind.layouts(Option((0,) * len(kind.strategies))), measured)


def two(both: Measurement, between_s: float = 0.0, fixed_s: float = 0.0) -> Cost:
    kind = kinds(model("gpt"))[1]
    layouts = kind.chained_layouts(Option((0, 0, 0, 0)))
    return cost_of_two(kind, layouts, both, between_s=between_s, fixed_s=fixed_s)


# median 10, spread 0.5
ALONE = measurement(9.5, 10.0, 10.5, 9.0, 11.0)


def test_a_segment_costs_what_was_measured() -> None:
    found = cost(ALONE)
    assert (found.time_s, found.at_least_s, found.spread_s) == (10, 9, 0.5)
    assert found.compute_s is None  # no trace: what is not measured is not 0
    assert found.communication_s is None
    assert not found.rough
    kind = kinds(two_products())[0]
    assert found.memory == memory_use(kind.extracts[0], kind.layouts(Option((0, 0)))[0], MEMORY)


def test_one_of_two_in_a_row_costs_half_of_what_is_theirs() -> None:
    both = replace(ALONE, shares=Shares(3.0, 1.5, 0.5))
    found = two(both, between_s=1.0, fixed_s=3.0)
    assert (found.time_s, found.at_least_s, found.spread_s) == (3.0, 2.5, 0.25)
    assert found.compute_s == pytest.approx(1.8)
    assert found.communication_s == pytest.approx(1.2)
    assert two(both).time_s == 5
    assert two(both, between_s=20.0).time_s == 0
    assert two(replace(both, stopped_early=True)).rough
    assert two(ALONE).shares is None


def test_memory_of_one_of_two_is_near_that_of_one_alone() -> None:
    kind = kinds(model("gpt"))[1]
    option = Option((0, 0, 0, 0))
    plenty = Memory(2**30, 0, 0, 0)
    one = memory_use(kind.extracts[0], kind.layouts(option)[0], plenty)
    half = two(replace(ALONE, memory=plenty)).memory
    assert half.parameter_bytes == one.parameter_bytes
    assert half.state_bytes == one.state_bytes
    assert half.gradient_bytes == one.gradient_bytes
    assert half.activation_bytes == pytest.approx(one.activation_bytes, rel=0.05)
    assert half.total_bytes == half.kept_bytes + half.scratch_bytes


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], 0.0),
        ([(7.0, 13.0, 0.0)], 1.0),  # two take less than twice one: 1 is there once
        ([(7.0, 15.0, 0.0)], 0.0),  # more: nothing is
        ([(7.0, 15.0, 3.0)], 2.0),  # of which 3 are resharding
        ([(7.0, 13.0, 0.0), (7.0, 11.0, 0.0), (7.0, 12.0, 0.0)], 2.0),
    ],
)
def test_the_fixed_part(pairs: list[tuple[float, float, float]], expected: float) -> None:
    found = [(measurement(one), measurement(both), between) for one, both, between in pairs]
    assert fixed_part(found) == expected


def test_noise_is_no_fixed_part() -> None:
    """Two in a row take 10 +- 1. Twice one at 7 +- 1 takes at least 1 more; at 7 +- 2 maybe not."""
    one, both = measurement(6.0, 7.0, 8.0), measurement(9.0, 10.0, 11.0)
    assert fixed_part([(one, both, 0.0)]) == 1.0
    assert fixed_part([(measurement(5.0, 7.0, 9.0), both, 0.0)]) == 0.0


@settings(FAST, max_examples=60)
@given(measurements.filter(lambda m: m.runs_s), seconds, seconds)
def test_costs_are_never_negative(found: Measurement, between_s: float, fixed_s: float) -> None:
    found = replace(found, memory=MEMORY, failed=None)
    for made in (cost(found), two(found, between_s, fixed_s)):
        assert 0 <= made.at_least_s <= made.time_s
        if made.shares is not None and found.time_s > 1e-6:
            total = (made.compute_s or 0.0) + (made.communication_s or 0.0)
            assert total == pytest.approx(made.time_s, rel=1e-6, abs=1e-9)


def test_programs_count_as_often_as_they_run() -> None:
    kind = kinds(model("llama", layers=7, scan=True, checkpoint=True))[1]
    body = measurement(1.0, 2.0, 3.0, shares=Shares(3.0, 1.0, 0.0))
    once = measurement(4.0, 5.0, 6.0, shares=Shares(1.0, 0.0, 1.0))
    found = cost(body, once, kind=kind)
    n = 7 / MEASURED_ITERATIONS  # the body was measured in a loop
    assert found.time_s == n * 2 + 5
    assert found.at_least_s == n * 1 + 4
    assert found.spread_s == pytest.approx(((n * 0.5) ** 2 + 0.5**2) ** 0.5)
    assert found.shares == Shares(n * 1.5 + 2.5, n * 0.5, 2.5)
    layouts = kind.layouts(Option((0, 0, 0, 0)))
    uses = [memory_use(c, lie, MEMORY) for c, lie in zip(kind.extracts, layouts, strict=True)]
    assert found.memory.state_bytes == uses[0].state_bytes + uses[1].state_bytes
    assert found.memory.activation_bytes == uses[0].activation_bytes + uses[1].activation_bytes
    assert found.memory.scratch_bytes == max(use.scratch_bytes for use in uses)


def test_what_a_micro_batch_does_counts_as_often_and_the_update_once() -> None:
    embedding, layer, head = kinds(accumulating())
    assert [[extract.times for extract in kind.extracts] for kind in (embedding, layer, head)] == [
        [3, 1],
        [6, 3, 1],
        [3, 1],
    ]
    runs = [measurement(1.0), measurement(10.0), measurement(100.0)]
    assert cost(*runs[:2], kind=head).time_s == 3 / MEASURED_ITERATIONS + 10
    assert cost(*runs, kind=layer).time_s == (6 + 3 * 10) / MEASURED_ITERATIONS + 100


def test_shares_are_unknown_where_one_is() -> None:
    kind = kinds(model("llama", layers=7, scan=True, checkpoint=True))[1]
    known = measurement(1.0, shares=Shares(1.0, 0.0, 0.0))
    assert cost(known, measurement(1.0), kind=kind).shares is None
    assert cost(known, replace(known, shares=Shares(0.0, 0.0, 0.0)), kind=kind).shares is None
    assert cost(known, known, kind=kind).shares is not None


def test_given_up_early_is_rough() -> None:
    kind = kinds(model("llama", layers=7, scan=True, checkpoint=True))[1]
    full, rough = measurement(1.0, 2.0), measurement(1.0, stopped_early=True)
    assert not cost(full, full, kind=kind).rough
    assert cost(full, rough, kind=kind).rough
    assert cost(rough, full, kind=kind).rough


def test_a_stored_row_keeps_the_name_it_always_had() -> None:
    """Rows that older versions stored say `cut` of a program that was stopped early."""
    document = measurement(1.0, stopped_early=True).to_json()
    assert document["cut"] is True
    assert "stopped_early" not in document
    assert Measurement.from_json(document).stopped_early
