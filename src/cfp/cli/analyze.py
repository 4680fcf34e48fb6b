"""`cfp analyze`: the blocks and segments of a step."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

import cfp
from cfp.cli.options import json_option, model_options, parse_mesh
from cfp.cli.targets import load_target
from cfp.report import show_analysis


@click.command()
@click.argument("target")
@click.option(
    "--mesh", callback=parse_mesh, default="4", show_default=True, help="The mesh: 4 or 2x4."
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
