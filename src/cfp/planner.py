"""The whole pipeline: from an unmodified step to the fastest plan that fits in memory.

analyse    trace, blocks, segments; pins and templates               -> Analysed
profile    every distinct segment and resharding, on the devices     -> Profile
search     one option per segment: least time within the limit       -> Proposals
audit      the best few as full steps: their real memory and time
           decide; then the chosen one on fresh rounds               -> Chosen

Where full steps need more memory than predicted, profile, search and audit come again (`choose`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

from cfp.analysis import Analysis
from cfp.blocks.feedback import TRAINS_NOTHING, find_feedback
from cfp.blocks.follow_batch import follow_batch
from cfp.cluster import Team
from cfp.errors import PlanWarning
from cfp.layouts import AnyMesh, Layout, auto_mesh, real_mesh
from cfp.links import Network
from cfp.plan import Plan
from cfp.plan.build import analyze_for
from cfp.plan.file import plan_from_json, plan_to_json
from cfp.plan.pins import resolve_pins
from cfp.planning.choose import Chooser, Chosen
from cfp.planning.evidence import Stopwatch, gather_evidence
from cfp.planning.kept import KeptPlans, key_of_plan
from cfp.planning.leading import leading_plans
from cfp.planning.options import Given, Options
from cfp.planning.proposals import Proposals
from cfp.profile import Profile, Progress
from cfp.profile.api import Manner, check_network, open_campaign
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.rounds import USUAL
from cfp.profile.profiler import Profiler
from cfp.profile.runners.shared_decision import decide_together
from cfp.templates.by_name import make_templates

PASSES = 3  # of measuring for a memory limit: what plans miss it by hardly changes after two
NO_SEQUENCE = (
    "Sequence dims were not tried: the batch divides by the whole mesh, and splitting that divides "
    "the work alike and sends less."
)


def plan(
    step: Callable[..., Any],
    *args: Any,
    mesh: AnyMesh,
    progress: Progress | bool | None = None,
    team: Team | None = None,
    **options: Unpack[Given],
) -> Plan:
    """Returns the fastest plan for a training step on the devices of a mesh, by measuring.

    `step` is any function of `args`, which are arrays or `ShapeDtypeStruct`s in any pytrees.

    memory_limit   bytes per device, or "12GiB"; by default what the device has less 5 %, where it
                   says. Counts what `plan.jit(step)` needs: a step that does not donate its state
                   has it twice.
    pins           how arguments must lie: {"state.params.*.qkv": PartitionSpec(None, "x")}
    budget         seconds or "5m" for all of it; full steps have 30 to 50 % of that, and the best
                   prediction has one in any case. A compilation that is under way when the time is
                   over may end later.
    audit          how many predictions are run as full steps, the best ones that really differ,
                   the fastest of which is returned; True: 3, False or 0: none
    beside         templates to run next to it afterwards, on fresh rounds (or to replay), for
                   `plan.evidence.confirmed`: "data_parallel" ...
    sequence       let sequence dims be split on their own, where the batch does not divide by the
                   mesh (else that gains nothing)
    outer_batch    the mesh's first axis splits the batch and nothing else: less to measure
    recompute      what the backward pass computes again instead of keeping it. "auto": the plan
                   decides for every segment, where memory may run out or the step's own
                   `jax.checkpoint` may cost more than it must; "as written": what the step
                   says; "none": nothing
    exhaustive     measure every option of every segment
    progress       who is told what is being done; by default a line on stderr, where that is a
                   terminal; False tells nobody, True always writes to stderr
    cache_dir, isolate, effort, team   as of `cfp.profile.profile`
    links          of a mesh that is not there (`jax.sharding.AbstractMesh`): what communication
                   takes along each axis, {"data": "ib_400g", "model": "h200_nvlink"}. One local GPU
                   stands in for all of them: `docs/gpus.md`.

    On a mesh of several processes (`jax.distributed`) every process calls this alike, and gets the
    plan; process 0 decides what is measured, and keeps it.
    """
    return make_plan(step, args, mesh, Options(**options), progress, team)


def make_plan(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: AnyMesh,
    options: Options,
    progress: Progress | bool | None = None,
    team: Team | None = None,
    kept: KeptPlans | None = None,
) -> Plan:
    """Returns what `plan` does, its options in one value; one of the `kept` plans where it answers
    the same question."""
    from cfp.report.progress import shown  # reads plans, so it is a later room

    budget = Budget.of(options.budget_s)
    network = options.network(auto_mesh(mesh))
    check_network(mesh, network)
    task = Task(step, args, auto_mesh(mesh), options, network)

    def decide(team: Team | None) -> Plan:
        with shown(progress, options.budget_s) as telling:
            if kept is None:
                return replace(run_stages(task, budget, telling, team), mesh=mesh)
            analysis = analyze_for(step, args, task.mesh, sequence=options.sequence)
            there = real_mesh(mesh, "cfp.jit")
            key = key_of_plan(analysis, there, options, team)
            found = kept.find(key, there, step, analysis)
            if found is None:
                found = replace(run_stages(task, budget, telling, team), mesh=mesh)
                kept.keep(key, found)
            return found

    return decide_together(
        task.mesh,
        team,
        options.isolate,
        decide,
        pack=lambda plan: json.dumps(plan_to_json(plan)).encode(),
        unpack=lambda text: plan_from_json(json.loads(text), mesh).bind(step, *args),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned; the mesh has Auto axes, and a network where it has no devices."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: AnyMesh
    options: Options
    network: Network | None = None


@dataclass(frozen=True, slots=True)
class Analysed:
    """What is known before anything is measured. `pinned` is how arguments must lie, by position;
    `templates` are plans to run beside the chosen one, or why there is none; `outer` is what the
    first mesh axis must split, a candidate per block."""

    analysis: Analysis
    notes: tuple[str, ...]
    pinned: Mapping[int, Layout]
    templates: Mapping[str, Plan | str]
    outer: tuple[int | None, ...]


def run_stages(task: Task, budget: Budget, telling: Progress, team: Team | None) -> Plan:
    """Runs all stages, in the process that decides."""
    options = task.options
    telling.stage("analysing the step")
    watch = Stopwatch(budget.start)
    with watch.timing("analysing the step"):
        analysed = analyse(task)
    with open_campaign(
        task.mesh,
        cache_dir=options.cache_dir,
        isolate=options.isolate,
        manner=Manner(
            effort=options.effort or USUAL,
            progress=telling,
            budget=budget.followed_by(*full_steps(options, analysed)),
        ),
        team=team,
        network=task.network,
    ) as campaign:
        proposals, chosen = choose(task, analysed, campaign, watch)
    evidence = gather_evidence(proposals, chosen, campaign, watch.spent())
    levels = campaign.machine.levels(task.mesh.axis_names)
    network = () if task.network is None else task.network.notes(campaign.machine.device_kind)
    notes = (*analysed.notes, *chosen.notes, *levels, *network)
    plan = replace(chosen.proposal.plan, notes=notes, evidence=evidence)
    if task.network is None:
        return plan
    machine = campaign.machine
    made = replace(plan.environment, platform=machine.platform, device_kind=machine.device_kind)
    return replace(plan, environment=made)


def analyse(task: Task) -> Analysed:
    """Finds the step's blocks and segments, and resolves what the options name of them."""
    options, mesh = task.options, task.mesh
    analysis = analyze_for(task.step, task.args, mesh)
    sequence = options.sequence and not analysis.batch_divides
    if sequence:
        analysis = analyze_for(task.step, task.args, mesh, sequence=True)
    graph = analysis.graph
    outer: tuple[int | None, ...] = ()
    notes = notes_of(analysis)
    if options.sequence and not sequence:
        notes = (*notes, NO_SEQUENCE)
    pinned = resolve_pins(graph, mesh, options.pins or {})
    if options.outer_batch:
        parts = mesh.axis_sizes[0]
        outer = tuple(follow_batch(graph, analysis.grouping, parts, "outer_batch"))
    templates = make_templates(options.beside, task.step, task.args, mesh)
    return Analysed(analysis, notes, pinned, templates, outer)


def full_steps(options: Options, analysed: Analysed) -> tuple[int, int]:
    """Returns how many full steps are measured to choose one, and then on fresh rounds: the chosen
    one, one device alone and the templates."""
    beside = sum(isinstance(one, Plan) for one in analysed.templates.values())
    return (options.audited, 2 + beside) if options.audited else (0, 0)


def choose(
    task: Task, analysed: Analysed, campaign: Campaign, watch: Stopwatch
) -> tuple[Proposals, Chosen]:
    """Measures, searches and runs full steps. Where these need more memory than predicted, what
    leads within as much less may have options that were not measured: they are, and the search
    goes on with them."""
    allowance = limit = task.options.limit_bytes(task.mesh)
    profiler = profiler_of(task, analysed, campaign, limit)
    chooser = Chooser(campaign, limit, task.options.audited, analysed.templates)
    with campaign.holding():
        with watch.timing("measuring segments and reshardings"):
            profile = profiler.run()
        for left in reversed(range(PASSES)):
            campaign.progress.stage("searching")
            with watch.timing("searching"):
                proposals = search(task, analysed, profile)
            campaign.outlook.later = {}  # full steps are next, and last
            with watch.timing("running full steps"):
                allowance = chooser.select(proposals, allowance, last=not left)
            if allowance is None:
                break
            with watch.timing("measuring segments and reshardings"):
                profile = profiler.run_within(allowance)
        with watch.timing("running full steps"):
            chosen = chooser.choose()
    return proposals, chosen


def profiler_of(
    task: Task, analysed: Analysed, campaign: Campaign, limit_bytes: int | None
) -> Profiler:
    """Returns what measures the segments and reshardings that may matter."""
    scope = Scope(
        exhaustive=task.options.exhaustive,
        memory_limit_bytes=limit_bytes,
        outer=analysed.outer,
        recompute=task.options.recomputing,
    )
    return Profiler(analysed.analysis, task.mesh, campaign, scope, leading_plans)


def search(task: Task, analysed: Analysed, profile: Profile) -> Proposals:
    """Composes the measurements into plans to choose from."""
    return Proposals(
        task.step,
        analysed.analysis,
        task.mesh,
        profile,
        pins=task.options.pins or {},
        pinned=analysed.pinned,
    )


def notes_of(analysis: Analysis) -> tuple[str, ...]:
    """Returns what the user should know of the step, as notes of its plan; what is serious is a
    warning."""
    graph = analysis.graph
    notes = [*analysis.notes]
    if not find_feedback(graph, analysis.grouping.parameters):
        notes.append(TRAINS_NOTHING)
        warnings.warn(TRAINS_NOTHING, PlanWarning, stacklevel=8)  # at the caller of `plan`
    if graph.own_constraints:
        notes.append(
            f"The step itself says how {graph.own_constraints} tensors lie "
            "(with_sharding_constraint); the plan decides in its place."
        )
    return tuple(notes)
