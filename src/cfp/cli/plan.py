"""`cfp plan`: the fastest plan that fits, by measuring."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import cfp
from cfp.cli.options import (
    Command,
    cache_dir_option,
    gathered,
    json_option,
    measuring,
    model_options,
    parse_mesh,
    parse_names,
    parsed,
    pin_option,
    platform_option,
    process_options,
)
from cfp.cli.targets import keep_target, load_target
from cfp.cluster import TeamLost
from cfp.cluster.join import Membership
from cfp.devices import MOST_DEVICES, make_mesh
from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.memory_size import parse_memory
from cfp.plan.file import plan_to_json
from cfp.planner import make_plan
from cfp.planning.options import AUDITED, Options
from cfp.report import show_planned, write_page


@dataclass(frozen=True, slots=True)
class Output:
    """Where the plan and the page about it go; with `as_json` the plan goes to stdout, and to a
    file only where one is named."""

    out: str | None
    report: str | None
    as_json: bool

    def write(self, best: cfp.Plan, found: Sequence[cfp.Plan]) -> None:
        """Hands over the best of the plans that were found."""
        out = self.out or "plan.json"
        report = self.report or report_path(out)
        if self.out is not None or not self.as_json:
            best.save(out)
            write_page(best, report)
        if self.as_json:
            click.echo(json.dumps(plan_to_json(best), indent=1))
            return
        show_planned(best, Console(), [(one, step_time(one)) for one in found])
        click.echo(f"Wrote {out} and {report}.", err=True)


@click.command(cls=Command)
@click.argument("target")
@click.option("--mesh", callback=parse_mesh, help="The mesh: 4, 2x4 or 2x2x2.")
@click.option(
    "--devices",
    type=click.IntRange(1, MOST_DEVICES),
    help="Instead of --mesh: try every mesh of this many devices.",
)
@platform_option
@gathered(
    "asked",
    Options,
    click.option(
        "--memory-limit",
        callback=parsed(parse_memory),
        help="Memory per device, such as 12GiB. [default: what devices report, less 5 %]",
    ),
    click.option(
        "--budget",
        callback=parsed(parse_duration),
        help="Return a plan after 90s, 5m, 1h30m ... and the compilation under way.",
    ),
    click.option(
        "--audit",
        type=click.IntRange(0),
        default=AUDITED,
        show_default=True,
        help="How many of the best predictions run as full steps. The fastest is taken, and runs "
        "again on fresh rounds.",
    ),
    click.option(
        "--beside",
        callback=parse_names,
        multiple=True,
        help="Templates that run on those rounds too: megatron,fsdp or all. Repeatable.",
    ),
    pin_option,
    click.option("--sequence", is_flag=True, help="Let sequence dims be split on their own."),
    click.option(
        "--outer-batch", is_flag=True, help="Let the first mesh axis split the batch alone."
    ),
    click.option("--exhaustive", is_flag=True, help="Measure every way to split every segment."),
    cache_dir_option,
)
@gathered(
    "output",
    Output,
    click.option(
        "--out",
        type=click.Path(dir_okay=False),
        help="Where to write the plan. [default: plan.json; with --json nowhere]",
    ),
    click.option(
        "--report",
        type=click.Path(dir_okay=False),
        help="Where to write a page about the plan. [default: as --out, with .html: plan.html]",
    ),
    json_option,
)
@process_options
@model_options
def plan(
    target: str,
    mesh: tuple[int, ...] | None,
    devices: int | None,
    platform: str | None,
    asked: Options,
    output: Output,
    membership: Membership,
    **options: Any,
) -> None:
    """Find the fastest plan that fits, by measuring on the devices.

    Measures the ways to split each distinct segment, composes them, runs the best few as full steps
    and writes the fastest as a file to train with. What was measured before is not measured again;
    stopped at any moment, the same command goes on.

    TARGET is a model or module:function, as in `cfp analyze`.

    \b
        cfp plan gpt --size small --mesh 4 --platform cpu --beside all
        cfp plan my_project.train:make_step --mesh 2x4 --memory-limit 12GiB
        cfp plan llama --size small --devices 8 --platform cpu --budget 10m
    """
    if (mesh is None) == (devices is None):
        raise click.UsageError("Give --mesh 2x4, or --devices 8 to try every mesh of 8 devices.")
    shapes = [mesh] if mesh is not None else factorisations(devices or 1)
    count = math.prod(shapes[0])
    with membership.joined(count, platform) as team, measuring(asked.budget_s, team) as progress:
        make_mesh((count,), platform)  # all devices, before JAX starts
        step, args = load_target(target, options)
        share = None if asked.budget_s is None else asked.budget_s / len(shapes)
        asked = replace(asked, budget=share)

        def make(shape: tuple[int, ...]) -> cfp.Plan:
            return make_plan(step, args, make_mesh(shape, platform), asked, progress, team)

        only = len(shapes) == 1
        found, refused = ([make(shapes[0])], []) if only else plan_meshes(shapes, make)
    if team is not None and not team.leads:
        return
    if not found:
        raise CfpError(f"No mesh of {devices} devices has a plan. {' '.join(refused)}")
    for why in refused:
        click.echo(f"cfp: {why}", err=True)
    best = replace(min(found, key=step_time), target=keep_target(target, options))
    output.write(best, found)


def plan_meshes(
    shapes: Sequence[tuple[int, ...]], make: Callable[[tuple[int, ...]], cfp.Plan]
) -> tuple[list[cfp.Plan], list[str]]:
    """Returns the plans of the meshes that have one, and why the others have none."""
    found: list[cfp.Plan] = []
    refused: list[str] = []
    for shape in shapes:
        try:
            found.append(make(shape))
        except TeamLost:
            raise
        except CfpError as error:
            refused.append(f"{'x'.join(map(str, shape))}: {error}")
    return found, refused


def factorisations(devices: int) -> list[tuple[int, ...]]:
    """Returns the meshes of one to three axes, none of size 1: 8 is 8, 2x4, 4x2, 2x2x2."""
    found: list[tuple[int, ...]] = [(devices,)]
    for a in range(2, devices // 2 + 1):
        if devices % a == 0:
            found += [(a, *rest) for rest in factorisations(devices // a) if len(rest) < 3]
    return sorted(found, key=lambda shape: (len(shape), shape))


def report_path(out: str) -> str:
    """Returns where the page goes: the one about `plans/a.json` is `plans/a.html`, so that no plan
    overwrites another's."""
    path = Path(out)
    return str(path.with_suffix(".html") if path.suffix == ".json" else f"{path}.html")


def step_time(plan: cfp.Plan) -> float:
    """Returns the measured seconds of a plan's step, or else the predicted ones."""
    assert plan.evidence is not None
    assert plan.predicted is not None
    own = plan.evidence.own
    return plan.predicted.time_s if own is None else own.time_s
