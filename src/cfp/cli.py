"""The command line: parse, call, print.

Exit codes: 0 done, 1 the user's problem, 2 usage, 3 a bug of ours.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

import cfp
from cfp.errors import CfpError
from cfp.report import show_analysis
from cfp.targets import load_target

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def parse_mesh(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """`4` is (4,) and `2x4` is (2, 4)."""
    sizes = text.lower().split("x")
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise click.BadParameter(f"{text!r} is not a mesh: write 4 or 2x4.")
    return tuple(int(size) for size in sizes)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Size and overrides of the built-in models."""
    options: list[Decorator] = [
        click.option("--size", help="tiny (default), small, or the paper's: 760m, 2.6b, 7b ..."),
        *(
            click.option(f"--{name}", type=int, help=f"Override the size's {meaning}.")
            for name, meaning in (
                ("layers", "number of layers"),
                ("hidden", "hidden size (heads and ffn follow)"),
                ("heads", "attention heads"),
                ("seq", "sequence length"),
                ("batch", "batch size"),
                ("vocab", "vocabulary"),
                ("experts", "experts per MoE layer"),
            )
        ),
        click.option("--dtype", help="float32 or bfloat16."),
        click.option("--scan", is_flag=True, help="Put the layers under lax.scan."),
        click.option("--checkpoint", is_flag=True, help="Recompute each layer (jax.checkpoint)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
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
    except CfpError as error:
        click.echo(f"cfp: {error}", err=True)
        sys.exit(1)
    except Exception:  # noqa: BLE001 - the last resort: show it whole and say it is ours
        traceback.print_exc()
        click.echo("cfp: this is a bug of ours; please report it with the lines above.", err=True)
        sys.exit(3)
    sys.exit(0)
