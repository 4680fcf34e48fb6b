"""`cfp check`: does a plan still fit its step?"""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

import cfp
from cfp.cli.options import (
    json_option,
    load_plan,
    mesh_of,
    model_options,
    named_target,
    platform_option,
)
from cfp.cli.targets import load_target
from cfp.plan.file import read_document


@click.command()
@click.argument("path", metavar="PLAN")
@click.argument("target", required=False)
@platform_option
@click.option("--measure", is_flag=True, help="Run the step, too, and compare its speed.")
@click.option(
    "--record",
    is_flag=True,
    help="Write what the step sends into the plan, where it fits, for the next check.",
)
@json_option
@model_options
def check(
    path: str,
    target: str | None,
    platform: str | None,
    measure: bool,
    record: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell whether a plan still fits its step, for CI.

    After an upgrade or a change of the model: are the arguments and segments those of the plan, are
    collectives, memory and (with --measure) speed as recorded in it? Prints a line for each. The
    exit code is 0 where the plan fits and 1 where something differs.

    PLAN is a file that `cfp plan` or `cfp template` wrote, TARGET the step, as in `cfp analyze`:
    left out, it is the one that the plan was made for.

    \b
        cfp check plan.json my_project.train:make_step
        cfp check plan.json --platform cpu --measure
    """
    document = read_document(path)
    axes = document.mesh("mesh")
    target, options = named_target(target, options, path, document)
    with Console(stderr=True).status(f"Checking {path} against {target} ..."):
        plan = load_plan(path, mesh_of(axes, platform), quiet=True)
        step, args = load_target(target, options)
        checked = cfp.check(step, *args, plan=plan, measure=measure)
    if as_json:
        click.echo(json.dumps(checked.to_json(), indent=1))
    else:
        click.echo(checked.show())
    if not checked.fits:
        raise click.exceptions.Exit(1)
    if record:
        bound = plan.bind(step, *args)
        bound.collectives()
        bound.save(path)
        click.echo(f"Wrote {path}.", err=True)
