"""Is a step slower after the step of another plan than after itself?

Plans are compared by full steps that run in turn, and in training a step follows itself. So a step
runs twice in its turn and the second run counts; but not one that takes `UNMARKED_S` or longer,
which is taken to have outlived what ran before it. Here every template's step runs twice in every
turn, whatever it takes, as the processes of a cluster, and

    mark = first run / second run of a turn, in the median over the turns

with its 95 % interval: 1 where what ran before does not matter.

`python -m bench.following` writes bench/results/following.md. It needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cluster.spec import read_spec
from bench.clustered import CFP, CLUSTERS, NAMES, SHAPE, Cell, joined, run_inside
from bench.environment import made_by
from cfp import templates
from cfp.cluster import Team
from cfp.devices import make_mesh
from cfp.profile.api import open_campaign
from cfp.profile.measure.confidence import median_interval, ratios
from cfp.profile.measure.full_step import step_request
from cfp.profile.measure.rounds import UNMARKED_S
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Failed
from cfp.profile.runners.runner import Runner
from cfp.profile.runners.shared_decision import decide_together

OUT = Path(__file__).parent / "results" / "following.md"
BATCHES = (4, 16)
ROUNDS = 12
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    plan: str
    first_s: tuple[float, ...]
    second_s: tuple[float, ...]

    @property
    def time_s(self) -> float:
        return statistics.median(self.second_s)

    @property
    def mark(self) -> float:
        return statistics.median(ratios(self.first_s, self.second_s))

    @property
    def interval(self) -> tuple[float, float]:
        return median_interval(ratios(self.first_s, self.second_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="gpt")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument("--mesh", default="4")
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "clusters")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # the cluster's processes
    options = parser.parse_args()
    found: dict[Cell, list[Row]] = {}
    for cluster in options.clusters:
        for batch in options.batches:
            cell = Cell(options.model, batch, cluster, options.mesh)
            if options.inside:
                inside(cell, options.inside)
                return
            words = ["--model", cell.model, "--batches", str(batch), "--mesh", cell.mesh]
            file = options.store.absolute() / "following" / f"{cell.name}.json"
            rows = run_inside(cluster, "bench.following", [*words, "--clusters", cluster], file)
            if rows is not None:
                found[cell] = [Row(**row) for row in rows]
                options.out.write_text(render(found))
    print(options.out.read_text())


def inside(cell: Cell, file: Path) -> None:
    """Runs as one process of the cluster; process 0 decides, and writes."""
    with joined(math.prod(cell.mesh_shape)) as team:
        mesh = make_mesh(cell.mesh_shape, "cpu")
        step, args = cell.step()
        plans = {
            name: getattr(templates, name)(step, *args, mesh=mesh).known("bench")
            for name in NAMES
            if name != CFP
        }

        def decide(team: Team | None) -> None:
            with (
                tempfile.TemporaryDirectory(prefix="cfp-following-") as folder,
                open_campaign(mesh, cache_dir=folder, team=team) as campaign,
            ):
                machine = campaign.machine
                requests = {
                    name: step_request(machine, mesh, plan.analysis, plan.layouts, name)
                    for name, plan in plans.items()
                }
                rows = run(campaign.runner, requests)
            file.write_text(json.dumps([asdict(row) for row in rows]))

        decide_together(mesh, team, None, decide, pack=lambda _: b"", unpack=lambda _: None)


def run(runner: Runner, requests: dict[str, Request]) -> list[Row]:
    """Returns the rows; the first round warms up, and is left out."""
    for request in requests.values():
        runner.submit(request.make())
    _compile(runner, {request.key for request in requests.values()})
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in requests}
    draw = random.Random(0)
    for _ in range(ROUNDS + 1):
        for name in draw.sample(list(requests), len(requests)):
            first, second = (_run(runner, requests[name]) for _ in range(2))
            runs[name].append((first, second))
    return [
        Row(name, *(tuple(one) for one in zip(*pairs[1:], strict=True)))
        for name, pairs in runs.items()
    ]


def _compile(runner: Runner, keys: Iterable[str]) -> None:
    waiting = set(keys)
    while waiting:
        for answer in runner.finished(1.0):
            if isinstance(answer, Failed):
                raise RuntimeError(answer.reason)
            waiting.discard(answer.key)


def _run(runner: Runner, request: Request) -> float:
    answer = runner.run(request.key, PATIENCE_S)
    if isinstance(answer, Failed):
        raise RuntimeError(f"{request.name}: {answer.reason}")
    return answer


def render(found: dict[Cell, list[Row]]) -> str:
    lines = [
        "# A step after another plan's step, and after itself",
        "",
        made_by("bench.following"),
        "",
        f"Size `small` with {', '.join(f'{k} {v}' for k, v in SHAPE.items())}; {ROUNDS} turns. "
        "Mark: the first run of a turn over the second, which follows itself.",
        "",
    ]
    for cluster in dict.fromkeys(cell.cluster for cell in found):
        lines.append(f"- `{cluster}`: {read_spec(cluster).description}")
    every = [row for rows in found.values() for row in rows]
    lines += [
        "",
        "| steps that take | plans | median mark | furthest from 1 |",
        "|---|---|---|---|",
    ]
    for text, some in (
        (f"{UNMARKED_S:g} s or longer", [row for row in every if row.time_s >= UNMARKED_S]),
        ("less", [row for row in every if row.time_s < UNMARKED_S]),
    ):
        if some:
            furthest = max((row.mark for row in some), key=lambda mark: abs(math.log(mark)))
            middle = statistics.median(row.mark for row in some)
            lines.append(f"| {text} | {len(some)} | {middle:.3f} | {furthest:.3f} |")
    lines += [
        "",
        "| cluster | mesh | model | batch | plan | step ms | mark | 95 % interval |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell, rows in found.items():
        for row in rows:
            low, high = row.interval
            lines.append(
                f"| {cell.cluster} | {cell.mesh} | {cell.model} | {cell.batch} | {row.plan} "
                f"| {row.time_s * 1e3:.0f} | {row.mark:.3f} | {low:.3f} to {high:.3f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
