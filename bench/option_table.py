"""Records what the options of one layer take, so that tests can explore what was really measured.

The layer is GPT's, on a mesh of 2x2 devices in two processes, whose link is slow and both axes
cross: bytes that are sent take most of the time, which a busy machine disturbs least. The layer has
four blocks and nine strategies for each, 6561 options, which would take hours. The table therefore
covers those strategies of every block that split the batch along the first axis, or the same along
both: five of nine, and of the 625 options of these `--options`, drawn at random. The fastest
`--extended` of them are also measured with split streams, with training state split further, and
with every level of what is kept. A second pass measures the fastest `--again` of all once more with
more rounds, since the fastest of hundreds of noisy times is fastest by luck.

    combo     the strategy of every block: its place in `strategies`, and after those in `streams`
    runs_s    of the first pass: drift and what starting a program takes are removed
    again_s   of the second pass, on the scale of the first
    bound     it was stopped early, so that it takes at least its fastest run

`python -m bench.option_table` writes bench/results/option_table.json.gz. Stopped, it goes on where
it was (`--store`). It needs root. The table that is there has 384 options of the 625, and was made
on a machine that did other work as well: runs of one option differ by a quarter in the median.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console

from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.clustered import joined
from bench.environment import environment
from cfp import analyze
from cfp.blocks import Strategy
from cfp.cluster import Team
from cfp.layouts.state import State
from cfp.models import config, make_step
from cfp.profile import Effort
from cfp.profile.api import Manner, open_campaign
from cfp.profile.explore.streams import split_streams
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.measurement import Measurement
from cfp.profile.profiler import IDLE
from cfp.profile.programs.boundary import Interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.requests import idle_request
from cfp.profile.runners.shared_decision import decide_together
from cfp.report import TerminalProgress
from cfp.segments.keep import Keep

OUT = Path(__file__).parent / "results" / "option_table.json.gz"
MESH = (2, 2)
MODEL = "gpt"
SHAPE: dict[str, Any] = {"layers": 3, "hidden": 128, "ffn": 512, "seq": 32, "batch": 8}
DIAGONAL = [[0, 2], [3, 1]]  # devices 0, 1 and 2, 3 are of one process each: both axes cross
FIRST = Effort(warmups=1, repeats=6, steady=0.02, plenty_s=1.0, wave=8)
SECOND = Effort(warmups=1, repeats=16, wave=8)
ALL = 5**4
DIGITS = 7  # of a second: a tenth of a microsecond


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cluster", default="slow_200mbit")
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--extended", type=int, default=3)
    parser.add_argument("--again", type=int, default=40)
    parser.add_argument("--options", type=int, default=ALL, help="drawn of the 625, at random")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        command = [sys.executable, "-m", "bench.option_table", *sys.argv[1:], "--inside"]
        sys.exit(run(read_spec(given.cluster), command))
    with joined(math.prod(MESH)) as team:
        devices = np.array(jax.devices())[DIAGONAL]
        mesh = Mesh(devices, ("x", "y"))
        kind = layer()

        def decide(team: Team | None) -> bytes:
            return json.dumps(record(given, kind, mesh, team)).encode()

        found = decide_together(mesh, team, None, decide, pack=bytes, unpack=bytes)
        if team.leads:
            OUT.write_bytes(gzip.compress(found, mtime=0))


def record(given: argparse.Namespace, kind: Kind, mesh: Mesh, team: Team | None) -> dict[str, Any]:
    """Returns the table. The order is random, so that the first options are a fair sample."""
    sizes = [range(len(some)) for some in kind.strategies]
    plain = [Option(combo) for combo in itertools.product(*sizes)]
    random.Random(0).shuffle(plain)
    store = given.store.absolute()
    with measuring(store / "options", kind, mesh, team, FIRST) as ledger:
        found = measure(ledger, kind, plain[: given.options])
        leading = fastest(found, given.extended)
        found |= measure(ledger, kind, [one for o in leading for one in beside(kind, o)])
    with measuring(store / "options_again", kind, mesh, team, SECOND) as ledger:
        again = measure(ledger, kind, fastest(found, given.again))
    print(f"{len(found)} options, {len(again)} of them twice", file=sys.stderr)
    command = f"python -m bench.option_table --options {given.options}"
    made = f"`{command}`, {environment()}."
    return {"made": made, **describe(kind, given.cluster), **rows(found, again)}


def layer() -> Kind:
    """Returns GPT's layer alone, with the strategies that the table covers."""
    step, args = make_step(config(MODEL, **SHAPE), abstract=True)
    kinds = find_kinds(analyze(step, *args, mesh_shape=MESH))
    kind = max(kinds, key=lambda kind: kind.space)
    covered = tuple(tuple(filter(is_covered, some)) for some in kind.strategies)
    return replace(kind, index=0, chain=None, strategies=covered)


def is_covered(strategy: Strategy) -> bool:
    """Returns whether the first axis splits the batch, or both split the same."""
    return strategy[0] == 0 or len(set(strategy)) == 1


def beside(kind: Kind, option: Option) -> list[Option]:
    """Returns the option with everything else that a segment chooses besides its strategies."""
    streams = [option, *split_streams(kind, option)]
    every = itertools.product(streams, State, (Keep.AS_WRITTEN, *kind.levels))
    found = [replace(one, state=state, keep=keep) for one, state, keep in every]
    return [one for one in found if one != option]


@contextmanager
def measuring(
    store: Path, kind: Kind, mesh: Mesh, team: Team | None, effort: Effort
) -> Iterator[Ledger]:
    manner = Manner(effort=effort, progress=TerminalProgress(Console(stderr=True)))
    with open_campaign(mesh, cache_dir=store, manner=manner, team=team) as campaign:
        ledger = Ledger(campaign, mesh, [kind], Interfaces((kind,), (), (), {}))
        few, many = (idle_request(campaign.machine, mesh, count) for count in IDLE)
        campaign.set_overhead(few, many)
        campaign.set_anchor(ledger.ask(kind, Option((0,) * len(kind.strategies)))[0])
        yield ledger


def measure(ledger: Ledger, kind: Kind, options: Iterable[Option]) -> dict[Option, Measurement]:
    asked = list(options)
    ledger.measure((kind, option) for option in asked)
    ledger.campaign.settle()
    known = ledger.campaign.known
    return {option: known[ledger.requests[0][option][0].key] for option in asked}


def fastest(found: dict[Option, Measurement], count: int) -> list[Option]:
    times_s = {o: m.time_s for o, m in found.items() if m.failed is None and not m.stopped_early}
    return sorted(times_s, key=times_s.__getitem__)[:count]


def net_s(one: Measurement, scale: float = 1.0) -> list[float]:
    return [round(scale * (run_s / one.drift - one.overhead_s), DIGITS) for run_s in one.runs_s]


def describe(kind: Kind, cluster: str) -> dict[str, Any]:
    return {
        "cluster": read_spec(cluster).description,
        "devices": DIAGONAL,
        "model": MODEL,
        "shape": SHAPE,
        "mesh": MESH,
        "strategies": kind.strategies,
        "streams": kind.streams,
        "first": kind.show(Option((0,) * len(kind.strategies))),
    }


def rows(
    found: dict[Option, Measurement], again: dict[Option, Measurement]
) -> dict[str, list[dict[str, Any]]]:
    """Returns a row per option. The second pass had a machine of its own speed."""
    scale = statistics.median(found[option].time_s / again[option].time_s for option in again)
    listed = []
    for option, one in found.items():
        row: dict[str, Any] = {"combo": option.combo}
        if option.state is not State.BLOCK:
            row["state"] = option.state.value
        if option.keep is not Keep.AS_WRITTEN:
            row["keep"] = option.keep.value
        if one.failed is not None:
            row["failed"] = one.failed
        else:
            row["runs_s"] = net_s(one)
            row["memory_bytes"] = one.memory.total_bytes if one.memory else None
        if one.stopped_early:
            row["bound"] = True
        if option in again:
            row["again_s"] = net_s(again[option], scale)
        listed.append(row)
    return {"options": listed}


if __name__ == "__main__":
    main()
