"""`cfp verify`: a plan's results beside those of the unsharded step."""

from __future__ import annotations

import json
from dataclasses import asdict
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
@json_option
@model_options
def verify(
    path: str, target: str | None, platform: str | None, as_json: bool, **options: Any
) -> None:
    """Run a step with a plan and without, and compare every output.

    They must agree up to rounding. PLAN is a file that `cfp plan` or `cfp template` wrote, TARGET
    the step it is for, as in `cfp analyze`: left out, it is the one that the plan was made for.

    \b
        cfp verify plan.json --platform cpu
        cfp verify plan.json my_project.train:make_step
    """
    document = read_document(path)
    axes = document.mesh("mesh")
    target, options = named_target(target, options, path, document)
    with Console(stderr=True).status(f"Running {target} with {path} and without ..."):
        plan = load_plan(path, mesh_of(axes, platform))
        step, args = load_target(target, options)
        result = cfp.verify(step, *args, plan=plan)
    if as_json:
        outputs = [asdict(output) for output in result.outputs]
        click.echo(json.dumps({"verified": True, "plan": plan.name, "outputs": outputs}, indent=1))
    else:
        click.echo(result.show())
