"""Options by which one command runs as several processes, and `cfp launch`."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click

from cfp.cluster.join import Membership
from cfp.cluster.ports import free_port
from cfp.errors import CfpError

VARIABLES = ("CFP_COORDINATOR", "CFP_NUM_PROCESSES", "CFP_PROCESS_ID")
FAREWELL_S = 60.0  # for the others to end by themselves, once one has failed
ECHO_S = 5.0  # what a process prints may be held open by one that it started


def process_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--coordinator`, `--num-processes`, `--process-id`: the command gets a `Membership`."""
    coordinator, count, index = VARIABLES

    @click.option(
        "--coordinator",
        envvar=coordinator,
        metavar="HOST:PORT",
        help="Of several processes: where process 0 is. [default: Slurm, Open MPI, Kubernetes]",
    )
    @click.option(
        "--num-processes", envvar=count, type=click.IntRange(1), help="How many there are."
    )
    @click.option("--process-id", envvar=index, type=click.IntRange(0), help="Which this is.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        coordinator: str | None,
        num_processes: int | None,
        process_id: int | None,
        **options: Any,
    ) -> None:
        membership = Membership(coordinator, num_processes, process_id)
        command(*args, membership=membership, **options)

    return wrapped


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--processes", type=click.IntRange(1), required=True, help="How many, on this machine."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(processes: int, command: tuple[str, ...]) -> None:
    """Start several processes of a command on this machine, for a quick try.

    They find each other: `cfp plan`, `compare`, `profile` and `train` need no more options. What
    process 0 prints is shown as it is, what the others print after their number. When one fails
    the others are given a minute to end, and then ended.

    \b
        cfp launch --processes 4 -- cfp plan gpt --size small --mesh 4 --platform cpu
        cfp launch --processes 2 -- cfp train gpt --size small --plan plan.json --platform cpu
    """
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    started: list[Started] = []
    try:
        for index in range(processes):
            who = (address, str(processes), str(index))
            started.append(start(command, who, shown=index == 0))
    except BaseException:  # Ctrl-C too: nobody waits for them yet
        for one in started:
            one.process.kill()
        raise
    code = wait_all(started)
    if code:
        sys.exit(code)


@dataclass(frozen=True, slots=True)
class Started:
    """A process, and the thread that passes on what it prints, if one does."""

    process: subprocess.Popen[str]
    echo: threading.Thread | None


def start(
    command: Sequence[str],
    membership: tuple[str, str, str],
    *,
    shown: bool,
    output: TextIO | None = None,
) -> Started:
    """One process. What one that is not `shown` prints goes to stderr, line by line, numbered; of
    one that is, stdout goes to `output`."""
    environment = {**os.environ, **dict(zip(VARIABLES, membership, strict=True))}
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CfpError(f"Cannot start `{command[0]}`: {error.strerror}.") from error
    if process.stdout is None:
        return Started(process, None)
    echo = threading.Thread(target=_echo, args=(process.stdout, membership[2]), daemon=True)
    echo.start()
    return Started(process, echo)


def wait_all(started: Sequence[Started]) -> int:
    """0 if all end well, else the code of the first that does not. SIGTERM is passed on."""
    processes = [one.process for one in started]
    code = 0
    deadline = float("inf")

    def stop(number: int, frame: object) -> None:
        nonlocal code, deadline
        code, deadline = code or 128 + number, time.monotonic() + FAREWELL_S
        for process in processes:
            if process.poll() is None and number != signal.SIGINT:
                process.send_signal(number)  # Ctrl-C they have from the terminal

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while any(process.poll() is None for process in processes):
            if not code and (code := _code(processes)):
                deadline = time.monotonic() + FAREWELL_S
            if time.monotonic() > deadline:
                for process in processes:
                    process.kill()
            time.sleep(0.1)
        for one in started:
            if one.echo is not None:
                one.echo.join(ECHO_S)  # its last lines
        return code or _code(processes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _code(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Of the first that has failed, as a shell has it; 0 if none has."""
    failed = [process.returncode for process in processes if process.returncode]
    if not failed:
        return 0
    return failed[0] if failed[0] > 0 else 128 - failed[0]


def _echo(lines: TextIO, number: str) -> None:
    for line in lines:
        click.echo(f"[{number}] {line}", nl=False, err=True)
