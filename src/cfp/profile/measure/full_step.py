"""Whole steps under a plan, measured like any program: compiled and run in the worker, in turn,
kept in the store. As in training, each follows itself, unless it takes long: what the step of
another plan leaves in the caches is no part of it. This is what a prediction is checked against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jax.sharding import AbstractMesh

from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.layouts import AnyMesh, Layouts, auto_mesh, whole
from cfp.profile.measure.budget import CONFIRMING_S, ROUNDS, WARMUPS
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.rounds import AGREEING
from cfp.profile.programs.key import key_of
from cfp.profile.programs.lower import check_callbacks
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Request, layout_request
from cfp.profile.runners.job import Job
from cfp.profile.runners.local_devices import one_device
from cfp.segments.extract import Extract

ALONE = "one device alone"
Step = tuple[Analysis, Layouts]


def whole_step(analysis: Analysis) -> Extract:
    """Returns the step as one program."""
    graph = analysis.graph
    return Extract(
        graph=graph,
        blocks=analysis.grouping,
        values=tuple(range(len(graph.values))),
        equations=tuple(range(len(graph.equations))),
        blocks_of=tuple(range(len(analysis.blocks))),
        times=1,
        feedback=find_feedback(graph, analysis.grouping.parameters),
    )


def step_request(
    machine: Machine, mesh: AnyMesh, analysis: Analysis, layouts: Layouts, name: str
) -> Request:
    """Returns the request of the step in these layouts. It competes with no other, so none is
    stopped early."""
    frees = machine.platform != "cpu"  # the host's memory holds several
    step, name = whole_step(analysis), f"full step: {name}"
    made = layout_request(machine, mesh, step, layouts, name, "", frees=frees)
    return replace(made, by_host=True)


def alone_request(machine: Machine, mesh: AnyMesh, analysis: Analysis, slowest_s: float) -> Request:
    """Returns the request of the step as it is on one device of the mesh, while the others do
    nothing; it is stopped early where it takes more than `slowest_s`."""
    one, graph = _one_device(mesh), analysis.graph
    assert one is not None, "process 0 decides what is measured"
    lies = whole(len(mesh.axis_sizes))
    layouts = Layouts((lies,) * len(graph.inputs), (lies,) * len(graph.outputs), {}, {})
    made = step_request(machine, one, analysis, layouts, ALONE)
    key = key_of(machine, ALONE, made.key)

    def make() -> Job:
        return replace(made.make(), key=key, alone=True)

    return replace(made, key=key, slowest_s=slowest_s, make=make)


def _one_device(mesh: AnyMesh) -> AnyMesh | None:
    if isinstance(mesh, AbstractMesh):
        return auto_mesh(AbstractMesh((1,) * len(mesh.axis_sizes), mesh.axis_names))
    return one_device(mesh)


def measure_steps(
    campaign: Campaign, mesh: AnyMesh, plans: Mapping[str, Step], *, enough_s: float = 0.0
) -> dict[str, Measurement]:
    """Measures every plan's step, all in turn with one another: were some measured before, without
    the others, they are again. One that does not run is `failed`; one that a deadline leaves no
    time for is left out. Short steps run more often, for `enough_s` seconds each."""
    requests = _requests(campaign, mesh, plans)
    return _measure(campaign, requests, enough_s=enough_s, fewest=AGREEING)


def confirm_steps(
    campaign: Campaign, mesh: AnyMesh, plans: Mapping[str, Step], *, alone_s: float | None = None
) -> dict[str, Measurement]:
    """Measures every plan's step as `measure_steps` does, on rounds of their own: `ROUNDS` of them,
    or more of short steps, however well the first ones agree. What the campaign holds compiled is
    not compiled again. With `alone_s`, the step runs on `ALONE` among them, and is given up where
    it takes more than that.

    On a stand-in, what was measured to choose a plan counts here, too: a replay is of kernels that
    the profiler timed on the device, and is not flattered by the luck of some rounds."""
    requests = _requests(campaign, mesh, plans)
    if alone_s is not None:
        analysis, _ = next(iter(plans.values()))
        requests[ALONE] = alone_request(campaign.machine, mesh, analysis, alone_s)
    keys = [one.key for one in requests.values()]
    campaign.let_go(but=keys)
    if campaign.network is not None:
        return _measure(campaign, requests, fewest=AGREEING)
    rounds = key_of(campaign.machine, "fresh rounds", sorted(keys))
    fresh = {name: _afresh(one, rounds) for name, one in requests.items()}
    return _measure(
        campaign, fresh, repeats=ROUNDS, enough_s=CONFIRMING_S, steady=0.0, plenty_s=math.inf
    )


def _requests(campaign: Campaign, mesh: AnyMesh, plans: Mapping[str, Step]) -> dict[str, Request]:
    for analysis, _ in plans.values():
        check_callbacks(analysis.graph)
    return {
        name: step_request(campaign.machine, mesh, analysis, layouts, name)
        for name, (analysis, layouts) in plans.items()
    }


def _afresh(request: Request, rounds: str) -> Request:
    """Returns the same program under a name of its own in the store, for its runs in these
    rounds."""
    key = f"{rounds[:16]}{request.key[:16]}"
    return replace(request, key=key, make=lambda: replace(request.make(), key=key))


def _measure(
    campaign: Campaign, requests: Mapping[str, Request], **effort: Any
) -> dict[str, Measurement]:
    wave = max(len(requests), 1)
    with campaign.trying(wave=wave, warmups=WARMUPS, follows=True, **effort):
        campaign.measure(requests.values(), together=True)
    known = campaign.known
    return {name: known[one.key] for name, one in requests.items() if one.key in known}
