"""The group of all commands, and what becomes of their errors.

Exit codes: 0 done, 1 the user's problem, 2 usage, 3 a bug of ours.

A command's file is imported when the command runs, or shows its help: JAX takes a second to import,
which `cfp --help` need not wait for.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from cfp.errors import CfpError, PlanWarning
from cfp.version import VERSION

# what `cfp --help` says of each command: the first sentence of its own help
COMMANDS = {
    "analyze": "Show the ParallelBlocks and distinct segments of a step.",
    "calibrate": "Measure what collectives take along each axis of a mesh, and write its links.",
    "cache": "Look at the measurements that were kept, or remove some.",
    "check": "Tell whether a plan still fits its step, for CI.",
    "compare": "Measure full steps under several plans, in turn.",
    "explain": "Show what a plan splits where, and what the devices then send.",
    "export": "Write a plan's shardings for programs that do not have CFP.",
    "launch": "Start several processes of a command on this machine, for a quick try.",
    "links": "List the links that plans can be made with, or show one.",
    "plan": "Find the fastest plan that fits, by measuring on the devices.",
    "profile": "Measure the ways to split each distinct segment of a step, on the devices.",
    "report": "Write the page about a plan, to read or to send.",
    "template": "Make the plan that people copy today, compile it, and explain it.",
    "train": "Train a step with a plan, and see loss and throughput as it runs.",
    "verify": "Run a step with a plan and without, and compare every output.",
}


class Commands(click.Group):
    """A group whose commands are in files of their names, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(importlib.import_module(f"cfp.cli.{cmd_name}"), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Says which cfp this is, where it comes from, and which JAX it would use."""
    if not asked or ctx.resilient_parsing:
        return
    try:
        jax = f"jax {metadata.version('jax')}"
    except metadata.PackageNotFoundError:
        jax = "without jax, which is not installed"
    folder = Path(__file__).parent.parent
    python = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"cfp, version {VERSION}, from {folder} (python {python}, {jax})")
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version, where it comes from, and that of JAX, and exit.",
)
def cli() -> None:
    """Plan how to split a JAX training step over many devices, by measuring."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    try:
        with _plain_warnings():
            # a command that has something to say by its code ends with `click.exceptions.Exit`
            code = cli.main(args=arguments, prog_name="cfp", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(1)
    except CfpError as error:
        if not error.told:
            click.echo(f"cfp: {error}", err=True)
        _leave(1)
    except Exception:  # noqa: BLE001 - the last resort: show it whole and say it is ours
        traceback.print_exc()
        click.echo("cfp: this is a bug of ours; please report it with the lines above.", err=True)
        _leave(3)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows our warnings as one line each, without the line of code that they come from."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any) -> None:
            if issubclass(category, PlanWarning):
                click.echo(f"cfp: {message}", err=True)
            else:
                usual(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _leave(code: int) -> None:
    """Exits. One of several processes exits at once: an orderly end would wait for the others, of
    which one may be gone."""
    import jax  # an error needs it, --help does not

    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
