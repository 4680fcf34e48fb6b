"""Starts one command as several processes on this machine, which then find each other."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from cfp.cluster.leash import VARIABLE as LAUNCHER
from cfp.cluster.leash import forking, leash
from cfp.cluster.rendezvous import SECRET
from cfp.errors import CfpError

# where a process is told of the others: where process 0 is, how many there are, which one it is
VARIABLES = ("CFP_COORDINATOR", "CFP_NUM_PROCESSES", "CFP_PROCESS_ID")
FAREWELL_S = 60.0  # for the others to end by themselves, once one has failed
ECHO_S = 5.0  # what a process prints may be held open by one that it started


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """A process, and the thread that passes on what it prints, if one does."""

    process: subprocess.Popen[str]
    echo: threading.Thread | None


Membered = tuple[Sequence[str], tuple[str, str, str]]  # a command, and the values of VARIABLES


def run_all(commands: Sequence[Membered], output: TextIO | None = None) -> int:
    """Runs processes that know one secret and end when this one does; returns the exit code. The
    first is shown, and its stdout goes to `output`."""
    started: list[LaunchedProcess] = []
    with leash() as (end, launcher):
        shared = {SECRET: secrets.token_hex(32), LAUNCHER: launcher}
        try:
            for command, membership in commands:
                own = {**shared, **dict(zip(VARIABLES, membership, strict=True))}
                shown = not started
                started.append(_start(command, own, end, shown=shown, output=output))
        except BaseException:  # Ctrl-C too: nobody waits for them yet
            for one in started:
                one.process.kill()
            raise
        return wait_all(started)


def _start(
    command: Sequence[str],
    variables: Mapping[str, str],
    leash_end: int,
    *,
    shown: bool,
    output: TextIO | None,
) -> LaunchedProcess:
    """Returns one started process. What a process that is not `shown` prints goes to stderr, line
    by line and numbered; the stdout of one that is shown goes to `output`."""
    try:
        with forking() as first:
            process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdout=output if shown else subprocess.PIPE,
                stderr=None if shown else subprocess.STDOUT,
                text=True,
                errors="replace",
                pass_fds=[leash_end],
                preexec_fn=first,
            )
    except OSError as error:
        raise CfpError(f"Cannot start `{command[0]}`: {error.strerror}.") from error
    if process.stdout is None:
        return LaunchedProcess(process, None)
    number = variables[VARIABLES[2]]
    echo = threading.Thread(target=_echo, args=(process.stdout, number), daemon=True)
    echo.start()
    return LaunchedProcess(process, echo)


def wait_all(started: Sequence[LaunchedProcess]) -> int:
    """Returns 0 if all end well, else the code of the first that does not. SIGTERM is passed on."""
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
    """Returns the code of the first process that has failed, as a shell has it; 0 if none has."""
    failed = [process.returncode for process in processes if process.returncode]
    if not failed:
        return 0
    return failed[0] if failed[0] > 0 else 128 - failed[0]


def _echo(lines: TextIO, number: str) -> None:
    for line in lines:
        print(f"[{number}] {line}", end="", file=sys.stderr, flush=True)
