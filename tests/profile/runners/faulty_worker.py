"""A worker that fails on purpose, by the names of its jobs. Start it as `worker.py` is started.

    a job's name contains   when it is run, the worker
    crash                   aborts, with a last line as XLA's
    segv                    reads where there is nothing
    kill                    is killed from outside
    peer                    is ended by JAX, since another worker is gone
    exit                    leaves, with code 3
    hang                    sleeps for ever
    oom                     really allocates more than there is

`crash@compile` fails when the job is compiled. `once:crash` fails one time only, and the runs of
all workers count: the directory in $CFP_TEST_FAULTS remembers. $CFP_TEST_PLAN is JSON that says
the same of jobs whose names are not ours to choose: {"segment 0: batch": "once:crash"}.
$CFP_TEST_RUNS is a file that gets the name of every job run, a line each.
"""

import dataclasses
import functools
import json
import os
import re
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from cfp.profile.runners import session
from cfp.profile.runners.job import Failed, Job
from cfp.profile.runners.worker import main

FAULT = re.compile(r"(once:)?(crash|segv|kill|peer|exit|hang|oom)(@compile)?")
MEMORY = "CFP_TEST_FAULTS"
PLAN = "CFP_TEST_PLAN"
RUNS = "CFP_TEST_RUNS"


def fail(name: str, stage: str) -> None:
    """Does what the name says, if it says it of this stage."""
    if stage == "@run" and RUNS in os.environ:
        with open(os.environ[RUNS], "a") as runs:
            runs.write(f"{name}\n")
    planned = json.loads(os.environ.get(PLAN, "{}")).get(name, "")
    for once, fault, where in FAULT.findall(f"{name} {planned}"):
        if (where or "@run") != stage:
            continue
        if once:
            memory = Path(os.environ[MEMORY])
            try:
                (memory / f"{name}{stage}".replace("/", "_")).touch(exist_ok=False)
            except FileExistsError:
                continue
        match fault:
            case "crash":
                print("F0101 00:00:00 faulty.cc:1] Check failed: ok() on purpose", file=sys.stderr)
                os.abort()
            case "segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "peer":
                said = (
                    "Terminating process because the JAX distributed service detected fatal errors"
                )
                print(f"F0101 00:00:00 client.h:80] {said}", file=sys.stderr)
                os.abort()
            case "exit":
                os._exit(3)
            case "hang":
                while True:
                    time.sleep(60)
            case "oom":
                jax.block_until_ready(jax.jit(jnp.ones, static_argnums=0)((2**46,)))


class FaultySession(session.Session):
    def run(self, key: str, mark: str = "") -> float | Failed:
        entry = self._entries[key]
        done, executable = entry.done, entry.done.result()
        if isinstance(executable, str):
            return super().run(key, mark)

        def call(*inputs: Any) -> Any:
            fail(entry.job.name, "@run")
            return executable.call(*inputs)

        # for this run only: jobs that are the same program share their executable
        entry.done = Future()
        entry.done.set_result(dataclasses.replace(executable, call=call))
        try:
            return super().run(key, mark)
        finally:
            entry.done = done


def faulty(lower: Any) -> Any:
    @functools.wraps(lower)
    def wrapped(job: Job, mesh: Any) -> Any:
        fail(job.name, "@compile")
        return lower(job, mesh)

    return wrapped


if __name__ == "__main__":
    session.lower = faulty(session.lower)
    main(int(sys.argv[1]), FaultySession)
