"""Runs a command as the processes of a test cluster."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TextIO

from bench.cluster.network import made
from bench.cluster.spec import Spec
from cfp.cluster.launch import run_all

PORT = 47321  # in namespaces of their own, any port is free
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def run(spec: Spec, command: Sequence[str], output: TextIO | None = None) -> int:
    """Returns the exit code; 0 if all processes end well. Process 0 is on the first host; its
    stdout goes to `output`. Ctrl-C and SIGTERM end the caller too, who may have more to run."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # so that the cluster is torn down

    before = {number: signal.signal(number, stop) for number in ENDING}
    try:
        with made(spec) as places:
            at = [
                p for p, host in zip(places, spec.hosts, strict=True) for _ in range(host.processes)
            ]
            address = f"{places[0].address}:{PORT}"
            commands = [
                (place.command(command), (address, str(len(at)), str(index)))
                for index, place in enumerate(at)
            ]
            code = run_all(commands, output)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code in STOPPED:
        raise SystemExit(code)
    return code
