"""`cfp explain`: what a plan splits where."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from cfp.cli.options import (
    json_option,
    load_plan,
    mesh_of,
    model_options,
    named_target,
    platform_option,
)
from cfp.cli.targets import load_target
from cfp.devices import reading_mesh
from cfp.plan.file import plan_to_json, read_document
from cfp.report import show_plan


@click.command()
@click.argument("path", metavar="PLAN")
@click.argument("target", required=False)
@platform_option
@json_option
@model_options
def explain(
    path: str, target: str | None, platform: str | None, as_json: bool, **options: Any
) -> None:
    """Show what a plan splits where, and what the devices then send.

    PLAN is a file that `cfp plan` or `cfp template` wrote. Alone it needs no devices. With TARGET
    (as in `cfp analyze`) the plan must be for that step, which is compiled: the collectives are
    fresh, and the memory is the compiler's. Options that are not given are the plan's.

    \b
        cfp explain plan.json
        cfp explain plan.json gpt --platform cpu
    """
    document = read_document(path)
    axes = document.mesh("mesh")
    collectives, memory_bytes = None, None
    if target is None:
        given = [name for name, value in {**options, "platform": platform}.items() if value]
        if given:
            raise click.UsageError(f"--{given[0]} needs a TARGET: name the step of the plan.")
        plan = load_plan(path, reading_mesh(axes), quiet=True)
    else:
        with Console(stderr=True).status(f"Compiling {target} ..."):
            plan = load_plan(path, mesh_of(axes, platform))
            step, args = load_target(*named_target(target, options, path, document))
            plan = plan.bind(step, *args)
            collectives, memory_bytes = plan.collectives(), plan.memory_bytes()
    if as_json:
        compiled = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
        click.echo(json.dumps({**plan_to_json(plan), **compiled}, indent=1))
    else:
        show_plan(plan, Console(), collectives=collectives, memory_bytes=memory_bytes)
