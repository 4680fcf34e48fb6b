"""Links by measurement: what collectives take along every axis of a mesh that is here, and along
all of them together.

For each of these and every kind of collective a program runs a chain of a few, each on the result
of the one before, so that starting a program weighs little. Sizes rise from a kilobyte by fours;
all programs of one size run in turn (`profile.measure`), and a collective takes

    time = (transfer + waiting, as the profiler divides the run's median time) / length of the chain

or all of that time where the profiler does not tell. Sizes end where the next one would take long:
by then time grows with the bytes. Times that fall while bytes rise are noise, and are levelled
(isotonic regression). A link's error is how far the line between its neighbours is from each size.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from jax.sharding import Mesh
from scipy.optimize import isotonic_regression

from cfp.calibration.probe import ITEM_BYTES, Probe, probe_request
from cfp.cluster import Team
from cfp.errors import CfpError
from cfp.links import Curve, FitError, Link
from cfp.links.file import read_links, show_file
from cfp.links.link import COLLECTIVES, Scope
from cfp.links.network import TOGETHER
from cfp.profile.api import Manner, open_campaign
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.progress import Progress
from cfp.profile.measure.rounds import Effort, OutOfTime
from cfp.profile.profiler import IDLE
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import idle_request
from cfp.profile.runners.scratch import scratch_folder
from cfp.profile.runners.shared_decision import decide_together
from cfp.version import VERSION

FIRST_BYTES, TIMES_LARGER = 2**10, 4  # the first size is nothing but latency
SECOND_BYTES = TIMES_LARGER * FIRST_BYTES
LARGEST_BYTES = 2**28  # 256 MiB: the weights of a large layer
LARGEST_CPU_BYTES = 2**24  # virtual devices share one memory, which several programs fill at once
LONG_S = 1.0  # a collective that would take longer is not measured: its bandwidth is known by then
FEWEST_SIZES = 2  # that make a link: a latency and a bandwidth
LEAST_S = 1e-7  # a time below what clocks tell: a link's times are above 0
# short programs run ten times; those of seconds thrice, which the network repeats within 3 %
EFFORT = Effort(warmups=2, repeats=10, steady=0.02, plenty_s=1.0)
Points = Mapping[tuple[str, str], list[tuple[int, float]]]  # size and time by link and collective


def calibrate(
    mesh: Mesh,
    *,
    largest_bytes: int | None = None,
    budget_s: float | None = None,
    isolate: bool | None = None,
    progress: Progress | None = None,
    team: Team | None = None,
    keep: Callable[[tuple[Link, ...]], None] = lambda links: None,
) -> tuple[Link, ...]:
    """Measures a link for every axis of a mesh, in order, named like the axes, and one for all of
    them together: `x+y`.

    `keep` is called with the links so far whenever a further size was measured, so that whoever is
    interrupted has them. Sizes go up to `largest_bytes`; by default, as far as they tell anything
    on such devices. After `budget_s` seconds the links so far are returned. An axis of one
    device has no link. Every process of the mesh calls this alike, as of `profile.profile`.
    """
    mesh = Mesh(mesh.devices, mesh.axis_names)  # its axes are Auto
    if mesh.devices.size < 2:
        raise CfpError("A mesh of one device has no links: calibrate one of several.")
    platform = mesh.devices.flat[0].platform
    if largest_bytes is None:
        largest_bytes = LARGEST_CPU_BYTES if platform == "cpu" else LARGEST_BYTES
    if largest_bytes < SECOND_BYTES:
        raise CfpError(
            f"The largest size is {largest_bytes} bytes, and a link is made of two, {FIRST_BYTES} "
            f"and {SECOND_BYTES}: raise it."
        )
    largest = largest_bytes
    budget = Budget.of(budget_s)

    def decide(team: Team | None) -> tuple[Link, ...]:
        with (
            scratch_folder("calibrate") as folder,  # nothing that was measured before counts
            open_campaign(
                mesh,
                cache_dir=folder,
                isolate=isolate,
                manner=Manner(effort=EFFORT, progress=progress or Progress(), budget=budget),
                team=team,
            ) as campaign,
        ):
            return _measure(campaign, mesh, team, keep, largest)

    return decide_together(
        mesh,
        team,
        isolate,
        decide,
        pack=lambda links: show_file(links).encode(),
        unpack=lambda data: tuple(read_links(data.decode(), "process 0").values()),
    )


def _measure(
    campaign: Campaign,
    mesh: Mesh,
    team: Team | None,
    keep: Callable[[tuple[Link, ...]], None],
    largest_bytes: int,
) -> tuple[Link, ...]:
    links: tuple[Link, ...] = ()
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    try:
        campaign.set_overhead(*(idle_request(campaign.machine, mesh, count) for count in IDLE))
        for wave in _waves(mesh, points, largest_bytes):
            requests = {probe: probe_request(campaign.machine, mesh, probe) for probe in wave}
            with campaign.trying(wave=len(wave)):
                campaign.measure(requests.values())
            for probe, request in requests.items():
                took_s = _collective_s(probe, campaign.known[request.key])
                points.setdefault((probe.link, probe.kind), []).append((probe.size_bytes, took_s))
            links = _links(campaign.machine, mesh, points, _how(campaign.machine, team))
            if links:
                keep(links)
    except OutOfTime:
        if not links:
            raise CfpError(
                f"The budget ended before {FEWEST_SIZES} sizes of every collective were measured: "
                "raise it."
            ) from None
    return links


def _groups(mesh: Mesh) -> list[tuple[str, ...]]:
    """Returns the axes that links are measured along: each that has devices, and all of them."""
    axes = tuple(str(axis) for axis, size in mesh.shape.items() if size > 1)
    return [*((axis,) for axis in axes), *([axes] if len(axes) > 1 else [])]


def _waves(mesh: Mesh, points: Points, largest_bytes: int) -> Iterator[list[Probe]]:
    """Returns the probes of one size after the other; `points` are what came of those before."""
    nominal = FIRST_BYTES
    while nominal <= largest_bytes:
        wave = []
        for axes, kind in itertools.product(_groups(mesh), COLLECTIVES):
            size = math.prod(mesh.shape[axis] for axis in axes)
            # every device has a part of the tensor for each of its group
            size_bytes = math.ceil(nominal / ITEM_BYTES / size) * size * ITEM_BYTES
            probe = Probe(kind, axes, size, size_bytes)
            found = points.get((probe.link, kind), [])
            if len(found) < FEWEST_SIZES or found[-1][1] * TIMES_LARGER < LONG_S:
                wave.append(probe)
        if not wave:
            return
        yield wave
        nominal *= TIMES_LARGER


def _collective_s(probe: Probe, found: Measurement) -> float:
    if found.failed is not None:
        raise CfpError(f"This collective does not run here: {probe.show()}: {found.failed}")
    shares = found.split()
    whole_s = found.time_s if shares is None else shares.transfer_s + shares.waiting_s
    return max(whole_s / probe.chain, LEAST_S)


def _links(machine: Machine, mesh: Mesh, points: Points, source: str) -> tuple[Link, ...]:
    """Returns the links that were measured; none while one of them has too few sizes."""
    names = [*mesh.axis_names]
    links = []
    for axes in _groups(mesh):
        name, size = TOGETHER.join(axes), math.prod(mesh.shape[axis] for axis in axes)
        own = {kind: points.get((name, kind), []) for kind in COLLECTIVES}
        if any(len(found) < FEWEST_SIZES for found in own.values()):
            return ()
        tables = {kind: {size: level(found)} for kind, found in own.items()}
        errors = [miss for curves in tables.values() for miss in left_out(curves[size])]
        error = FitError(statistics.median(errors), max(errors)) if errors else None
        crosses = any(machine.crosses_hosts(names.index(axis)) for axis in axes)
        scope: Scope = "network" if crosses else "node"
        links.append(Link(name, scope, machine.device_kind, source, error, tables))
    return tuple(links)


def level(points: list[tuple[int, float]]) -> Curve:
    """Returns the curve through points, times that fall made equal: in logarithms, as times differ
    by factors."""
    sizes, times_s = zip(*points, strict=True)
    levelled = np.exp(isotonic_regression(np.log(times_s)).x)
    return Curve(tuple(sizes), tuple(np.maximum.accumulate(levelled).tolist()))


def left_out(curve: Curve) -> Iterator[float]:
    """Returns the relative error at every inner size of the line between its neighbours."""
    for i in range(1, len(curve.bytes) - 1):
        without = Curve(
            (*curve.bytes[:i], *curve.bytes[i + 1 :]), (*curve.times_s[:i], *curve.times_s[i + 1 :])
        )
        yield abs(without.time_s(curve.bytes[i]) / curve.times_s[i] - 1)


def _how(machine: Machine, team: Team | None) -> str:
    where = "" if team is None else f" on {', '.join(dict.fromkeys(team.hosts))}"
    today = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return (
        f"measured by cfp {VERSION} calibrate on {today}: {machine.show()}{where}; medians of "
        f"{EFFORT.repeats} runs, or fewer that agree or take long"
    )
