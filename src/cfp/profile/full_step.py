"""Whole steps under a plan, measured like any program: compiled and run in the worker, in turn,
kept in the store. As in training, each follows itself, unless it takes long: what the step of
another plan leaves in the caches is no part of it. This is what a prediction is checked against."""

from __future__ import annotations

from collections.abc import Mapping

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.blocks.pairs import find_pairs
from cfp.layouts import Layouts
from cfp.profile.campaign import Campaign
from cfp.profile.machine import Machine
from cfp.profile.measurement import Measurement
from cfp.profile.requests import Request, layout_request
from cfp.profile.turns import AGREEING, runs_in_a_turn
from cfp.segments.extract import Extract

WARMUPS = 1  # rounds


def whole_step(analysis: Analysis) -> Extract:
    """The step as a program. Training state goes round where the step donates it."""
    graph = analysis.graph
    pairs = find_pairs(graph, analysis.grouping.parameters)
    return Extract(
        graph=graph,
        blocks=analysis.grouping,
        values=tuple(range(len(graph.values))),
        blocks_of=tuple(range(len(analysis.blocks))),
        times=1,
        goes_round={result: at for result, at in pairs.items() if at in graph.donated},
    )


def step_request(
    machine: Machine, mesh: Mesh, analysis: Analysis, layouts: Layouts, name: str
) -> Request:
    """The step laid out so. It competes with no other: none is given up."""
    frees = machine.platform != "cpu"  # the host's memory holds several
    step, name = whole_step(analysis), f"full step: {name}"
    return layout_request(machine, mesh, step, layouts, name, "", frees=frees)


def runs(step_s: float) -> int:
    """Of a step that takes so long, the last under the profiler; of short ones there are more."""
    return runs_in_a_turn(step_s) * (WARMUPS + AGREEING) + 1


def measure_steps(
    campaign: Campaign,
    mesh: Mesh,
    plans: Mapping[str, tuple[Analysis, Layouts]],
    *,
    enough_s: float = 0.0,
) -> dict[str, Measurement]:
    """Every plan's step, all in turn with one another: were some measured before, without the
    others, they are again. One that does not run is `failed`; one that a deadline leaves no time
    for is left out. Short steps run more often, for `enough_s` seconds each."""
    requests = {
        name: step_request(campaign.machine, mesh, analysis, layouts, name)
        for name, (analysis, layouts) in plans.items()
    }
    wave = max(len(requests), 1)
    with campaign.trying(
        wave=wave, warmups=WARMUPS, enough_s=enough_s, fewest=AGREEING, follows=True
    ):
        campaign.measure(requests.values(), together=True)
    known = campaign.known
    return {name: known[one.key] for name, one in requests.items() if one.key in known}
