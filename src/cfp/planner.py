"""The whole pipeline: from an unmodified step to the fastest plan that fits in memory.

analyze    trace, blocks, segments
profile    every distinct segment and resharding, measured on the devices
search     one option per segment: least time within the memory limit
choose     the best few as full steps: their real memory and their real time decide
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh

from cfp.candidates import Candidates
from cfp.choose import AUDITED, Chooser
from cfp.cluster import Team
from cfp.devices import memory_bytes
from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.memory_size import parse_memory
from cfp.plan import Plan, auto_mesh
from cfp.plan.build import analyze_for
from cfp.plan.evidence import Evidence
from cfp.plan.file import plan_from_json, plan_to_json
from cfp.plan.pins import resolve_pins
from cfp.profile import Effort, Progress
from cfp.profile.api import open_campaign
from cfp.profile.profiler import measure_segments
from cfp.profile.scope import Scope
from cfp.profile.together import together
from cfp.segments.fill import SEED
from cfp.templates.data_parallel import follow_batch
from cfp.templates.several import make_templates

MARGIN = 0.05  # of a device's memory, left to the runtime and to fragmentation


def plan(
    step: Callable[..., Any],
    *args: Any,
    mesh: Mesh,
    memory_limit: int | str | None = None,
    pins: Mapping[str, Any] | None = None,
    budget: float | str | None = None,
    audit: int | bool = AUDITED,
    beside: Sequence[str] = (),
    sequence: bool = False,
    outer_batch: bool = False,
    exhaustive: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    isolate: bool | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
    team: Team | None = None,
) -> Plan:
    """The fastest plan for a training step on the devices of a mesh, by measuring.

    `step` is any function of `args`, which are arrays or `ShapeDtypeStruct`s in any pytrees.

    memory_limit   bytes per device, or "12GiB"; by default what the device has less 5 %, where it
                   says. Counts what `plan.jit(step)` needs: a step that does not donate its state
                   has it twice.
    pins           how arguments must lie: {"state.params.*.qkv": PartitionSpec(None, "x")}
    budget         seconds or "5m" for measuring, 30 to 50 % of it for full steps; after it the
                   best of what was measured is returned
    audit          how many predictions are run as full steps, the best ones that really differ,
                   the fastest of which is returned; True: 3, False or 0: none
    beside         templates to run next to them, for `plan.evidence.steps`: "data_parallel" ...
    sequence       let sequence dims be split on their own
    outer_batch    the mesh's first axis splits the batch and nothing else: less to measure
    exhaustive     measure every option of every segment
    cache_dir, isolate, effort, progress, team   as of `cfp.profile.profile`

    On a mesh of several processes (`jax.distributed`) every process calls this alike, and gets the
    plan; process 0 decides what is measured, and keeps it.
    """
    start = time.monotonic()
    mesh = auto_mesh(mesh)
    limit, budget_s = limit_bytes(memory_limit, mesh), _seconds(budget)

    def decide(team: Team | None) -> Plan:
        telling = progress or Progress()
        telling.stage("analysing the step")
        analysis = analyze_for(step, args, mesh, sequence=sequence)
        pinned = resolve_pins(analysis.graph, mesh, pins or {})
        outer = follow_batch(analysis, mesh.devices.shape[0], "outer_batch") if outer_batch else ()
        others = make_templates(beside, step, args, mesh)
        count = AUDITED if audit is True else int(audit)
        beside_it = [one for one in others.values() if isinstance(one, Plan)]
        scope = Scope(
            exhaustive=exhaustive,
            budget_s=budget_s,
            full_steps=count + len(beside_it) if count else 0,
            memory_limit_bytes=limit,
            outer=tuple(outer),
        )
        with open_campaign(
            mesh, cache_dir=cache_dir, isolate=isolate, effort=effort, progress=telling, team=team
        ) as campaign:
            profile = measure_segments(campaign, analysis, mesh, scope)
            telling.stage("searching")
            candidates = Candidates(
                step, analysis, mesh, profile, pins=pins or {}, pinned=pinned, sequence=sequence
            )
            campaign.deadline = math.inf if budget_s is None else start + budget_s
            chosen = Chooser(candidates, campaign, limit, count, others).choose()
        evidence = Evidence(
            memory_limit_bytes=limit,
            slack_bytes=candidates.solve(limit).slack_bytes,
            seed=SEED,
            seconds=time.monotonic() - start,
            programs=campaign.compiled + campaign.loaded,
            loaded=campaign.loaded,
            segments=candidates.segments(chosen.candidate.point),
            frontier=candidates.frontier(),
            steps=chosen.steps,
        )
        notes = (*chosen.notes, *campaign.machine.levels(mesh.axis_names))
        return replace(chosen.candidate.plan, notes=notes, evidence=evidence)

    return together(
        mesh,
        team,
        isolate,
        decide,
        pack=lambda plan: json.dumps(plan_to_json(plan)),
        unpack=lambda text: plan_from_json(json.loads(text), mesh).bind(step, *args),
    )


def limit_bytes(memory_limit: int | str | None, mesh: Mesh) -> int | None:
    """What the user allows, else what the devices have less a margin, else no limit."""
    if memory_limit is None:
        there = memory_bytes(mesh)
        return None if there is None else int(there * (1 - MARGIN))
    found = parse_memory(memory_limit) if isinstance(memory_limit, str) else int(memory_limit)
    if found <= 0:
        raise CfpError(f"`memory_limit` is {memory_limit}: give bytes per device, or '12GiB'.")
    return found


def _seconds(budget: float | str | None) -> float | None:
    seconds = parse_duration(budget) if isinstance(budget, str) else budget
    if seconds is not None and not seconds > 0:
        raise CfpError(f"`budget` is {seconds:g} s: give a time such as '5m', or none.")
    return seconds
