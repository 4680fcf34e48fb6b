"""`cfp template`: the plans that people copy today."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from cfp import templates
from cfp.cli.options import (
    any_mesh,
    gathered,
    json_option,
    links_option,
    mesh_option,
    model_options,
    pin_option,
    platform_option,
)
from cfp.cli.targets import keep_target, load_target
from cfp.errors import CfpError
from cfp.plan.file import plan_to_json
from cfp.planning.options import Options
from cfp.report import show_plan


@click.command()
@click.argument("name", type=click.Choice(sorted(templates.__all__)))
@click.argument("target")
@mesh_option
@platform_option
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Where to write the plan. [default: plan.json; with --json nowhere]",
)
@gathered("asked", Options, pin_option, links_option)
@json_option
@model_options
def template(
    name: str,
    target: str,
    mesh: tuple[int, ...],
    platform: str | None,
    out: str | None,
    asked: Options,
    as_json: bool,
    **options: Any,
) -> None:
    """Make the plan that people copy today, compile it, and explain it.

    Mesh axes are called x, y, z. With --links the mesh need not be there: then nothing is compiled.
    TARGET is a model or module:function, as in `cfp analyze`.

    \b
        cfp template megatron gpt --mesh 2x4 --platform cpu --out plan.json
        cfp template fsdp my_project.train:make_step --mesh 4 --pin 'batch.*=x'
    """
    make = getattr(templates, name)
    if asked.pins and "pins" not in inspect.signature(make).parameters:
        raise CfpError(f"The template {name} takes no pins: leave --pin out.")
    with Console(stderr=True).status(f"Planning {target} with {name} ...") as status:
        devices = any_mesh(mesh, platform, asked.links)
        asked.network(devices)  # refuses links that the mesh cannot have
        step, args = load_target(target, options)
        plan = make(step, *args, mesh=devices, **({"pins": asked.pins} if asked.pins else {}))
        plan = replace(plan, target=keep_target(target, options))
        collectives, memory_bytes = None, None
        if asked.links is None:
            status.update(f"Compiling {target} ...")
            collectives, memory_bytes = plan.collectives(), plan.memory_bytes()
    if out is not None or not as_json:
        plan.save(out or "plan.json")
    if as_json:
        click.echo(json.dumps(plan_to_json(plan), indent=1))
        return
    show_plan(plan, Console(), collectives=collectives, memory_bytes=memory_bytes)
    click.echo(f"Wrote {out or 'plan.json'}.", err=True)
