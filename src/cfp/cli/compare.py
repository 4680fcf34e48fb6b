"""`cfp compare`: full steps under several plans, measured in turn."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

import cfp
from cfp.cli.options import (
    Command,
    any_mesh,
    cache_dir_option,
    gathered,
    json_option,
    links_option,
    load_plan,
    measuring,
    model_options,
    named_target,
    parse_mesh,
    parse_names,
    parsed,
    platform_option,
    process_options,
)
from cfp.cli.targets import load_target
from cfp.cluster import Team
from cfp.cluster.join import Membership
from cfp.devices import axis_names
from cfp.errors import CfpError
from cfp.memory_size import parse_memory
from cfp.plan.file import read_document
from cfp.planner import Task, make_plan
from cfp.planning.options import Options
from cfp.profile import Progress
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.confidence import FEWEST
from cfp.report import show_comparison
from cfp.templates.by_name import NAMES, make_templates

CFP = "cfp"  # among the names that `compare` takes: the plan that `cfp plan` makes


@dataclass(frozen=True, slots=True)
class Wanted:
    """The plans to compare, by name, and the rounds to run them in."""

    plans: tuple[str, ...]
    rounds: int

    def files(self) -> list[str]:
        """Returns the names that are those of plan files; refuses what names nothing."""
        if not self.plans:
            raise click.UsageError("--plans is empty: name a template, a plan file, or cfp.")
        found = [name for name in self.plans if name != CFP and name not in NAMES]
        for name in found:
            if not os.path.exists(name):
                raise CfpError(
                    f"`{name}` is no plan: name {CFP}, a template ({', '.join(sorted(NAMES))}) "
                    "or a plan file."
                )
        return found


@click.command(cls=Command)
@click.argument("target", required=False)
@click.option("--mesh", callback=parse_mesh, help="The mesh: 4 or 2x4. [default: a plan file's]")
@platform_option
@gathered(
    "wanted",
    Wanted,
    click.option(
        "--plans",
        callback=parse_names,
        multiple=True,
        default=[f"{CFP},data_parallel,megatron,zero1,fsdp,alpa"],
        show_default=True,
        help="What to compare: cfp (planned now), templates, plan files. Repeatable.",
    ),
    click.option("--rounds", type=click.IntRange(FEWEST), default=ROUNDS, show_default=True),
)
@gathered(
    "asked",
    Options,
    click.option(
        "--memory-limit",
        callback=parsed(parse_memory),
        help="Limits the plan made now, such as 12GiB.",
    ),
    cache_dir_option,
    links_option,
)
@json_option
@process_options
@model_options
def compare(
    target: str | None,
    mesh: tuple[int, ...] | None,
    platform: str | None,
    wanted: Wanted,
    asked: Options,
    as_json: bool,
    membership: Membership,
    **options: Any,
) -> None:
    """Measure full steps under several plans, in turn.

    Every round runs every plan. Times are medians with 95 % confidence intervals. A plan is slower
    than the fastest, ties with it (shown to be within 5 %), or is not told apart from it. With
    --links the mesh need not be there: steps are replayed, and those that differ by less than the
    links' own error are level. TARGET as of `cfp analyze`; where a plan file is among the plans it
    may be left out, and the mesh: they are then the plan's.

    \b
        cfp compare gpt --mesh 4 --platform cpu --plans cfp,megatron,fsdp
        cfp compare --platform cpu --plans plan.json,data_parallel --rounds 30
    """
    axes = None if mesh is None else dict(zip(axis_names(len(mesh)), mesh, strict=True))
    for name in wanted.files():
        document = read_document(name)
        axes = axes or document.mesh("mesh")
        target, options = named_target(target, options, name, document)
    if target is None:
        raise click.UsageError("Name a TARGET, as gpt, or a plan file in --plans.")
    if axes is None:
        raise click.UsageError("Give --mesh 2x4, or a plan file in --plans.")
    count = math.prod(axes.values())
    joined = membership.joined(count, platform) if asked.links is None else nullcontext()
    with joined as team, measuring(None, team) as progress:
        devices = any_mesh(tuple(axes.values()), platform, asked.links, tuple(axes))
        step, args = load_target(target, options)
        result = cfp.compare(
            step,
            *args,
            mesh=devices,
            plans=_make_plans(wanted.plans, Task(step, args, devices, asked), progress, team),
            rounds=wanted.rounds,
            progress=progress,
            team=team,
            links=asked.links,
        )
    if team is not None and not team.leads:
        return
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    else:
        show_comparison(result, Console())


def _make_plans(
    names: Sequence[str], task: Task, progress: Progress, team: Team | None
) -> dict[str, cfp.Plan | str]:
    """Returns the plans by name: planned now, made by a template, or loaded. Text says why a
    template has none."""
    found: dict[str, cfp.Plan | str] = {}
    for name in names:
        progress.stage(f"planning with {name}")
        if name == CFP:
            found[name] = make_plan(task.step, task.args, task.mesh, task.options, progress, team)
        elif name in NAMES:
            found |= make_templates([name], task.step, task.args, task.mesh)
        else:
            found[name] = load_plan(name, task.mesh)
    return found
