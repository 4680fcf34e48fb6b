"""`cfp plan` and `cfp compare`."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import click
from jax.sharding import Mesh
from rich.console import Console

import cfp
from cfp import templates
from cfp.cli_cache import cache_dir_option, json_option
from cfp.cli_cluster import process_options
from cfp.cli_options import (
    load_plan,
    measuring,
    mesh_option,
    model_options,
    parse_mesh,
    parsed,
    pin_option,
    platform_option,
)
from cfp.cluster import TeamLost
from cfp.cluster.join import Membership
from cfp.devices import make_mesh
from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.memory_size import parse_memory
from cfp.plan.file import plan_to_json
from cfp.report import show_comparison, show_planned, write_page
from cfp.targets import load_target
from cfp.templates.several import make_templates

CFP = "cfp"  # among the names that `compare` takes: the plan that `cfp plan` makes


def parse_names(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """`megatron,fsdp`, in one option or several; `all` is every template."""
    names = [name.strip() for text in texts for name in text.split(",")]
    found = [one for name in names for one in (templates.__all__ if name == "all" else [name])]
    return tuple(dict.fromkeys(name for name in found if name))


def factorisations(devices: int) -> list[tuple[int, ...]]:
    """Meshes of one to three axes, none of size 1: 8 is 8, 2x4, 4x2, 2x2x2."""
    found: list[tuple[int, ...]] = [(devices,)]
    for a in range(2, devices // 2 + 1):
        if devices % a == 0:
            found += [(a, *rest) for rest in factorisations(devices // a) if len(rest) < 3]
    return sorted(found, key=lambda shape: (len(shape), shape))


@click.command()
@click.argument("target")
@click.option("--mesh", callback=parse_mesh, help="Such as 4, 2x4 or 2x2x2.")
@click.option(
    "--devices", type=click.IntRange(1), help="Instead of --mesh: try the meshes of so many."
)
@platform_option
@click.option(
    "--memory-limit",
    callback=parsed(parse_memory),
    help="Per device, such as 12GiB. [default: what the device has less 5 %, where it says]",
)
@click.option(
    "--budget", callback=parsed(parse_duration), help="Stop measuring after 90s, 5m, 1h30m ..."
)
@click.option(
    "--audit",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Run so many of the best predictions as full steps, and take the fastest.",
)
@click.option(
    "--beside",
    callback=parse_names,
    multiple=True,
    help="Templates to run next to them: megatron,fsdp or all. Repeatable.",
)
@pin_option
@click.option("--sequence", is_flag=True, help="Let sequence dims be split on their own.")
@click.option("--outer-batch", is_flag=True, help="The first axis splits the batch, nothing else.")
@click.option("--exhaustive", is_flag=True, help="Measure every way to split every segment.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Where to write the plan. [default: plan.json; with --json nowhere]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False),
    help="Where to write a page about it. [default: report.html beside the plan]",
)
@cache_dir_option
@json_option
@process_options
@model_options
def plan(
    target: str,
    mesh: tuple[int, ...] | None,
    devices: int | None,
    platform: str | None,
    memory_limit: int | None,
    budget: float | None,
    audit: int,
    beside: tuple[str, ...],
    pins: dict[str, Any],
    sequence: bool,
    outer_batch: bool,
    exhaustive: bool,
    out: str | None,
    report: str | None,
    cache_dir: str | None,
    as_json: bool,
    membership: Membership,
    **options: Any,
) -> None:
    """Find the fastest plan that fits, by measuring on the devices.

    Measures the ways to split each distinct segment, composes them, runs the best few as full steps
    and writes the fastest as a file to train with. What was measured before is not measured again;
    stopped at any moment, the same command goes on. TARGET as of `cfp analyze`.

    \b
        cfp plan gpt --size small --mesh 4 --platform cpu --beside all
        cfp plan my_project.train:make_step --mesh 2x4 --memory-limit 12GiB
        cfp plan llama --size small --devices 8 --platform cpu --budget 10m
    """
    if (mesh is None) == (devices is None):
        raise click.UsageError("Give --mesh 2x4, or --devices 8 to try the meshes of so many.")
    shapes = [mesh] if mesh is not None else factorisations(devices or 1)
    count = math.prod(shapes[0])
    found: list[cfp.Plan] = []
    refused: list[str] = []
    with membership.joined(count, platform) as team, measuring(budget, team) as progress:
        make_mesh((count,), platform)  # all devices, before JAX starts
        step, args = load_target(target, options)
        for shape in shapes:
            try:
                found.append(
                    cfp.plan(
                        step,
                        *args,
                        mesh=make_mesh(shape, platform),
                        memory_limit=memory_limit,
                        pins=pins,
                        budget=None if budget is None else budget / len(shapes),
                        audit=audit,
                        beside=beside,
                        sequence=sequence,
                        outer_batch=outer_batch,
                        exhaustive=exhaustive,
                        cache_dir=cache_dir,
                        progress=progress,
                        team=team,
                    )
                )
            except TeamLost:
                raise
            except CfpError as error:
                if len(shapes) == 1:
                    raise
                refused.append(f"{'x'.join(map(str, shape))}: {error}")
    if team is not None and not team.leads:
        return
    if not found:
        raise CfpError(f"No mesh of {devices} devices has a plan. {' '.join(refused)}")
    for why in refused:
        click.echo(f"cfp: {why}", err=True)
    best = min(found, key=step_time)
    report = report or str(Path(out or "plan.json").with_name("report.html"))
    if out is not None or not as_json:
        best.save(out or "plan.json")
        write_page(best, report)
    if as_json:
        click.echo(json.dumps(plan_to_json(best), indent=1))
        return
    show_planned(best, Console(), [(one, step_time(one)) for one in found])
    click.echo(f"Wrote {out or 'plan.json'} and {report}.", err=True)


def step_time(plan: cfp.Plan) -> float:
    """Measured, or else predicted."""
    assert plan.evidence is not None
    assert plan.predicted is not None
    steps = plan.evidence.steps
    return steps[0].measured_s if steps else plan.predicted.time_s


@click.command()
@click.argument("target")
@mesh_option
@platform_option
@click.option(
    "--plans",
    callback=parse_names,
    multiple=True,
    default=[f"{CFP},data_parallel,megatron,zero1,fsdp,alpa"],
    show_default=True,
    help="cfp (planned here), templates, and plan files. Repeatable.",
)
@click.option("--rounds", type=click.IntRange(3), default=15, show_default=True)
@click.option(
    "--memory-limit", callback=parsed(parse_memory), help="For the plan made here, such as 12GiB."
)
@cache_dir_option
@json_option
@process_options
@model_options
def compare(
    target: str,
    mesh: tuple[int, ...],
    platform: str | None,
    plans: tuple[str, ...],
    rounds: int,
    memory_limit: int | None,
    cache_dir: str | None,
    as_json: bool,
    membership: Membership,
    **options: Any,
) -> None:
    """Measure full steps under several plans, in turn.

    Every round runs every plan. Times are medians with 95 % confidence intervals; plans whose
    ratio to the fastest may be 1 are called ties. TARGET as of `cfp analyze`.

    \b
        cfp compare gpt --mesh 4 --platform cpu --plans cfp,megatron,fsdp
        cfp compare gpt --mesh 4 --platform cpu --plans plan.json,data_parallel --rounds 30
    """
    if not plans:
        raise click.UsageError("--plans is empty: name a template, a plan file, or cfp.")
    with membership.joined(math.prod(mesh), platform) as team, measuring(None, team) as progress:
        devices = make_mesh(mesh, platform)
        step, args = load_target(target, options)
        found: dict[str, cfp.Plan | str] = {}
        for name in plans:
            progress.stage(f"planning with {name}")
            if name == CFP:
                found[name] = cfp.plan(
                    step,
                    *args,
                    mesh=devices,
                    memory_limit=memory_limit,
                    cache_dir=cache_dir,
                    progress=progress,
                    team=team,
                )
            elif name in templates.__all__:
                found |= make_templates([name], step, args, devices)
            else:
                found[name] = _file(name, devices)
        result = cfp.compare(
            step, *args, mesh=devices, plans=found, rounds=rounds, progress=progress, team=team
        )
    if team is not None and not team.leads:
        return
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    else:
        show_comparison(result, Console())


def _file(name: str, mesh: Mesh) -> cfp.Plan:
    if not os.path.exists(name):
        raise CfpError(
            f"`{name}` is no plan: name {CFP}, a template ({', '.join(sorted(templates.__all__))}) "
            "or a plan file."
        )
    return load_plan(name, mesh)
