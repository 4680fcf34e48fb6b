"""`cfp profile`: measurements of the ways to split each distinct segment."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

import cfp
from cfp.cli.options import (
    SEQUENCE_HELP,
    Command,
    any_mesh,
    cache_dir_option,
    gathered,
    json_option,
    links_option,
    measuring,
    mesh_option,
    model_options,
    parsed,
    platform_option,
    process_options,
)
from cfp.cli.targets import load_target
from cfp.cluster.join import Membership
from cfp.duration import parse_duration
from cfp.memory_size import parse_memory
from cfp.planning.options import Options
from cfp.profile import profile as profile_step
from cfp.report import profile_to_json, show_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be measured; `cfp.profile.profile` says what each option means."""

    budget: float | None
    exhaustive: bool
    lean: bool
    memory_limit: int | None
    sequence: bool
    cache_dir: str | None
    links: str | None


@click.command(cls=Command)
@click.argument("target")
@mesh_option
@platform_option
@gathered(
    "asked",
    Asked,
    click.option("--budget", callback=parsed(parse_duration), help="Stop after 90s, 5m, 1h30m ..."),
    click.option("--exhaustive", is_flag=True, help="Measure every way to split every segment."),
    click.option(
        "--lean",
        is_flag=True,
        help="Measure options with optimizer state or parameters split further, too.",
    ),
    click.option(
        "--memory-limit",
        callback=parsed(parse_memory),
        help="Memory per device, such as 12GiB: where the fastest needs more, --lean is implied.",
    ),
    click.option("--sequence", is_flag=True, help=SEQUENCE_HELP),
    cache_dir_option,
    links_option,
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@json_option
@process_options
@model_options
def profile(
    target: str,
    mesh: tuple[int, ...],
    platform: str | None,
    asked: Asked,
    top: int,
    as_json: bool,
    membership: Membership,
    **options: Any,
) -> None:
    """Measure the ways to split each distinct segment of a step, on the devices.

    What was measured before is not measured again: measurements are kept (`cfp cache show`).
    Stopped at any moment, the same command goes on.

    TARGET is a model or module:function, as in `cfp analyze`.

    \b
        cfp profile gpt --size small --mesh 4 --platform cpu
        cfp profile my_project.train:make_step --mesh 2x4 --budget 5m --json
    """
    count = math.prod(mesh)
    joined = membership.joined(count, platform) if asked.links is None else nullcontext()
    with joined as team, measuring(asked.budget, team) as progress:
        devices = any_mesh(mesh, platform, asked.links)
        step, args = load_target(target, options)
        analysis = cfp.analyze(step, *args, mesh_shape=mesh)
        if asked.sequence and not analysis.batch_divides:
            analysis = cfp.analyze(step, *args, mesh_shape=mesh, sequence=True)
        found = profile_step(
            analysis,
            devices,
            budget_s=asked.budget,
            exhaustive=asked.exhaustive,
            lean=asked.lean,
            memory_limit_bytes=asked.memory_limit,
            cache_dir=asked.cache_dir,
            progress=progress,
            team=team,
            network=Options(links=asked.links).network(devices),
        )
    if team is not None and not team.leads:
        return
    if as_json:
        click.echo(json.dumps(profile_to_json(found), indent=1))
    else:
        show_profile(found, Console(), devices.axis_names, top)
