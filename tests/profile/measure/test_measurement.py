"""What a measurement means: by the host's clock, on the device, and replayed on a network."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cfp.links import Network, find_links
from cfp.links.schedule import Moment, Schedule, ScheduledLoop, Transfer
from cfp.profile.measure.measurement import Measurement, Provenance
from cfp.profile.runners.job import Memory, Shares

RUNS = (1.0e-3, 1.1e-3, 0.9e-3)
MEMORY = Memory(1, 2, 3, 0)


def measured(shares: Shares | None, **fields: float) -> Measurement:
    return Measurement("key", "name", RUNS, memory=MEMORY, shares=shares, **fields)  # type: ignore[arg-type]


def network() -> Network:
    return find_links("h200_nvlink", {"x": 8})


SCHEDULE = Schedule(
    (
        Moment(100e-6, Transfer("all-gather", ("x",), 2**20)),
        Moment(5e-6, wait=0),
        Moment(
            0.0, loop=ScheduledLoop(3, (Moment(10e-6, Transfer("all-reduce", ("x",), 2**20), 0),))
        ),
    )
)


def test_a_device_that_waits_for_the_host_counts_by_its_own_time() -> None:
    found = measured(Shares(2e-4, 1e-4, 0.0), drift=1.25, overhead_s=1e-4).on_device()
    assert found.time_s == pytest.approx(3e-4)
    assert found.spread_s == pytest.approx(measured(None).spread_s * 0.3)


@pytest.mark.parametrize("shares", [None, Shares(0.0, 0.0, 0.0), Shares(9e-4, 2e-4, 0.0)])
def test_otherwise_the_hosts_clock_counts(shares: Shares | None) -> None:
    assert measured(shares).on_device() == measured(shares)


def test_a_replay_keeps_the_spread_and_tells_communication_apart() -> None:
    shares = Shares(135e-6, 0.0, 0.0, schedule=SCHEDULE)
    found = measured(shares, drift=0.7, overhead_s=1e-4)  # the host's
    replayed = found.replayed(network())
    gather = network().time_s("all-gather", ("x",), 2**20)
    reduce = network().time_s("all-reduce", ("x",), 2**20)
    exposed_s = gather - 5e-6 + 3 * reduce
    assert replayed.provenance is Provenance.REPLAYED
    assert replayed.time_s == pytest.approx(135e-6 + exposed_s)
    assert replayed.exposed_s == pytest.approx(exposed_s)
    assert replayed.communication_s == pytest.approx(gather + 3 * reduce)
    ratios = [after / before for after, before in zip(replayed.runs_s, found.runs_s, strict=True)]
    assert ratios == [pytest.approx(ratios[0])] * 3
    split = replayed.split()
    assert split is not None
    assert split.compute_s + split.transfer_s == pytest.approx(replayed.time_s)


def test_a_program_without_a_schedule_fails_and_one_device_alone_stays() -> None:
    found = measured(Shares(0.0, 0.0, 0.0, unreplayed="The loop does not say.")).replayed(network())
    assert found.failed == "The loop does not say."
    assert measured(None).replayed(network()) == measured(None)


def test_a_schedule_is_stored_with_its_measurement() -> None:
    found = measured(Shares(135e-6, 0.0, 0.0, schedule=SCHEDULE))
    document = json.loads(json.dumps(found.to_json()))
    assert Measurement.from_json(document, "key") == found


@pytest.mark.parametrize(
    ("moment", "changes", "why"),
    [
        (2, {"loop": {"times": 0, "body": []}}, "`times` is below 1"),
        (2, {"loop": {"times": "two", "body": []}}, "Expected `int`"),
        (1, {"wait": 1}, "waits for what does not start"),
        (1, {"wait": 7}, "waits for what does not start"),
        (0, {"compute_s": -1.0}, "numbers that no schedule has"),
    ],
)
def test_a_damaged_schedule_is_refused(moment: int, changes: dict[str, Any], why: str) -> None:
    document = json.loads(
        json.dumps(measured(Shares(135e-6, 0.0, 0.0, schedule=SCHEDULE)).to_json())
    )
    document["shares"]["schedule"]["moments"][moment] |= changes
    with pytest.raises(ValueError, match=why):
        Measurement.from_json(document)
