"""`cfp launch`: one command as several processes on this machine."""

from __future__ import annotations

import sys

import click

from cfp.cluster.launch import run_all
from cfp.cluster.ports import LOOPBACK, free_port, join_address


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--processes",
    type=click.IntRange(1),
    required=True,
    help="How many processes to start on this machine.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(processes: int, command: tuple[str, ...]) -> None:
    """Start several processes of a command on this machine, for a quick try.

    They find each other: `cfp plan`, `compare`, `profile` and `train` need no more options. What
    process 0 prints is shown as it is, what the others print after their number. When one fails
    the others are given a minute to end, and then ended; when `cfp launch` is killed they end, too.

    \b
        cfp launch --processes 4 -- cfp plan gpt --size small --mesh 4 --platform cpu
        cfp launch --processes 2 -- cfp train --plan plan.json --platform cpu
    """
    address = join_address(LOOPBACK, free_port(LOOPBACK))
    code = run_all([(command, (address, str(processes), str(i))) for i in range(processes)])
    if code:
        sys.exit(code)
