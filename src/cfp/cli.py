"""The command line: parse, call, print.

Exit codes: 0 done, 1 the user's problem, 2 usage, 3 a bug of ours.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
import traceback
from dataclasses import asdict
from typing import Any

import click
import jax
from rich.console import Console

import cfp
from cfp import templates
from cfp.cli_cache import cache, cache_dir_option, json_option
from cfp.cli_cluster import launch, process_options
from cfp.cli_options import (
    load_plan,
    measuring,
    mesh_of,
    mesh_option,
    model_options,
    parse_mesh,
    parsed,
    pin_option,
    platform_option,
)
from cfp.cli_plan import compare, plan
from cfp.cli_train import train
from cfp.cluster import TeamOver
from cfp.cluster.join import Membership
from cfp.devices import make_mesh, reading_mesh
from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.memory_size import parse_memory
from cfp.plan.file import plan_to_json, read_document
from cfp.profile import profile as profile_step
from cfp.report import (
    profile_to_json,
    show_analysis,
    show_plan,
    show_profile,
)
from cfp.targets import load_target


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(cfp.__version__, prog_name="cfp")
def cli() -> None:
    """Plan how to split a JAX training step over many devices, by measuring."""


@cli.command()
@click.argument("target")
@click.option(
    "--mesh", callback=parse_mesh, default="4", show_default=True, help="Such as 4 or 2x4."
)
@click.option("--sequence", is_flag=True, help="Let sequence dims be split on their own.")
@json_option
@model_options
def analyze(
    target: str, mesh: tuple[int, ...], sequence: bool, as_json: bool, **options: Any
) -> None:
    """Show the ParallelBlocks and distinct segments of a step. Needs no devices.

    TARGET is bert, gpt, moe, llama, or your own as module:function, where the function returns
    (step, args).

    \b
        cfp analyze gpt --layers 96 --mesh 4
        cfp analyze my_project.train:make_step --mesh 2x4 --json
    """
    with Console(stderr=True).status(f"Analysing {target} ..."):
        step, args = load_target(target, options)
        analysis = cfp.analyze(step, *args, mesh_shape=mesh, sequence=sequence)
    if as_json:
        click.echo(json.dumps(analysis.to_json(), indent=1))
    else:
        show_analysis(analysis, Console())


cli.add_command(cache)
cli.add_command(compare)
cli.add_command(launch)
cli.add_command(plan)
cli.add_command(train)


@cli.command()
@click.argument("target")
@mesh_option
@platform_option
@click.option("--budget", callback=parsed(parse_duration), help="Stop after 90s, 5m, 1h30m ...")
@click.option("--exhaustive", is_flag=True, help="Measure every way to split every segment.")
@click.option("--lean", is_flag=True, help="Also with optimizer state or parameters split further.")
@click.option(
    "--memory-limit",
    callback=parsed(parse_memory),
    help="Per device, such as 12GiB: --lean by itself where the fastest needs more.",
)
@click.option("--sequence", is_flag=True, help="Let sequence dims be split on their own.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@cache_dir_option
@json_option
@process_options
@model_options
def profile(
    target: str,
    mesh: tuple[int, ...],
    platform: str | None,
    budget: float | None,
    exhaustive: bool,
    lean: bool,
    memory_limit: int | None,
    sequence: bool,
    top: int,
    cache_dir: str | None,
    as_json: bool,
    membership: Membership,
    **options: Any,
) -> None:
    """Measure the ways to split each distinct segment of a step, on the devices.

    What was measured before is not measured again: measurements are kept (`cfp cache show`).
    Stopped at any moment, the same command goes on. TARGET as of `cfp analyze`.

    \b
        cfp profile gpt --size small --mesh 4 --platform cpu
        cfp profile my_project.train:make_step --mesh 2x4 --budget 5m --json
    """
    with membership.joined(math.prod(mesh), platform) as team, measuring(budget, team) as progress:
        devices = make_mesh(mesh, platform)
        step, args = load_target(target, options)
        analysis = cfp.analyze(step, *args, mesh_shape=mesh, sequence=sequence)
        found = profile_step(
            analysis,
            devices,
            budget_s=budget,
            exhaustive=exhaustive,
            lean=lean,
            memory_limit_bytes=memory_limit,
            cache_dir=cache_dir,
            progress=progress,
            team=team,
        )
    if team is not None and not team.leads:
        return
    if as_json:
        click.echo(json.dumps(profile_to_json(found), indent=1))
    else:
        show_profile(found, Console(), devices.axis_names, top)


@cli.command()
@click.argument("name", type=click.Choice(sorted(templates.__all__)))
@click.argument("target")
@mesh_option
@platform_option
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Where to write the plan. [default: plan.json; with --json nowhere]",
)
@pin_option
@json_option
@model_options
def template(
    name: str,
    target: str,
    mesh: tuple[int, ...],
    platform: str | None,
    out: str | None,
    pins: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Make the plan that people copy today, compile it, and explain it.

    Mesh axes are called x, y, z. TARGET as of `cfp analyze`.

    \b
        cfp template megatron gpt --mesh 2x4 --platform cpu --out plan.json
        cfp template fsdp my_project.train:make_step --mesh 4 --pin 'batch.*=x'
    """
    make = getattr(templates, name)
    if pins and "pins" not in inspect.signature(make).parameters:
        raise CfpError(f"The template {name} takes no pins: leave --pin out.")
    with Console(stderr=True).status(f"Planning {target} with {name} ...") as status:
        devices = make_mesh(mesh, platform)
        step, args = load_target(target, options)
        plan = make(step, *args, mesh=devices, **({"pins": pins} if pins else {}))
        status.update(f"Compiling {target} ...")
        collectives, memory_bytes = plan.collectives(), plan.memory_bytes()
    if out is not None or not as_json:
        plan.save(out or "plan.json")
    if as_json:
        click.echo(json.dumps(plan_to_json(plan), indent=1))
        return
    show_plan(plan, Console(), collectives=collectives, memory_bytes=memory_bytes)
    click.echo(f"Wrote {out or 'plan.json'}.", err=True)


@cli.command()
@click.argument("path", metavar="PLAN")
@click.argument("target", required=False)
@platform_option
@json_option
@model_options
def explain(
    path: str, target: str | None, platform: str | None, as_json: bool, **options: Any
) -> None:
    """Show what a plan splits where, and what the devices then send.

    PLAN is a file that `cfp template` wrote. Alone it needs no devices. With TARGET (as of `cfp
    analyze`) the plan must be for that step, which is compiled: the collectives are fresh, and
    the memory is the compiler's.

    \b
        cfp explain plan.json
        cfp explain plan.json gpt --layers 4 --platform cpu
    """
    axes = read_document(path).mesh("mesh")
    collectives, memory_bytes = None, None
    if target is None:
        given = [name for name, value in {**options, "platform": platform}.items() if value]
        if given:
            raise click.UsageError(f"--{given[0]} needs a TARGET: name the step of the plan.")
        plan = load_plan(path, reading_mesh(axes), quiet=True)
    else:
        with Console(stderr=True).status(f"Compiling {target} ..."):
            plan = load_plan(path, mesh_of(axes, platform))
            step, args = load_target(target, options)
            plan = plan.bind(step, *args)
            collectives, memory_bytes = plan.collectives(), plan.memory_bytes()
    if as_json:
        compiled = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
        click.echo(json.dumps({**plan_to_json(plan), **compiled}, indent=1))
    else:
        show_plan(plan, Console(), collectives=collectives, memory_bytes=memory_bytes)


@cli.command()
@click.argument("path", metavar="PLAN")
@click.argument("target")
@platform_option
@json_option
@model_options
def verify(path: str, target: str, platform: str | None, as_json: bool, **options: Any) -> None:
    """Run a step with a plan and without, and compare every output.

    They must agree up to rounding. PLAN is a file that `cfp template` wrote, TARGET the step it is
    for, as of `cfp analyze`.

    \b
        cfp verify plan.json gpt --layers 4 --platform cpu
    """
    axes = read_document(path).mesh("mesh")
    with Console(stderr=True).status(f"Running {target} with {path} and without ..."):
        plan = load_plan(path, mesh_of(axes, platform))
        step, args = load_target(target, options)
        result = cfp.verify(step, *args, plan=plan)
    if as_json:
        outputs = [asdict(output) for output in result.outputs]
        click.echo(json.dumps({"verified": True, "plan": plan.name, "outputs": outputs}, indent=1))
    else:
        click.echo(result.show())


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    try:
        cli.main(args=arguments, prog_name="cfp", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(1)
    except TeamOver:
        _leave(1)
    except CfpError as error:
        click.echo(f"cfp: {error}", err=True)
        _leave(1)
    except Exception:  # noqa: BLE001 - the last resort: show it whole and say it is ours
        traceback.print_exc()
        click.echo("cfp: this is a bug of ours; please report it with the lines above.", err=True)
        _leave(3)
    sys.exit(0)


def _leave(code: int) -> None:
    """Exits. As one of several processes at once: an orderly end would wait for the others, of
    which one may be gone."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
