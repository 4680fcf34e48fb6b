"""What planning takes, stage by stage, by batch size and by depth: the paper's overhead figures.

AnalysisPasses     trace, blocks, segments
ExecCompiling      lowering and compiling the segments' programs, as one waits for it
MetricsProfiling   running them
ComposeSearch      composing the measurements and searching, the whole frontier included
Audit              the best three as full steps, compiled and run: the paper has no such stage

Every case starts from an empty store, but for `--warm`: that is the last case once more.

`python -m bench.search_overhead` writes bench/results/search_overhead.md, in about half an hour on
two cores. Seconds depend on the machine; what matters is how they grow.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bench.environment import made_by
from bench.planned import make_case
from cfp import analyze
from cfp.planning.audit import audit
from cfp.planning.proposals import Proposals
from cfp.profile.api import Manner, open_campaign
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.rounds import USUAL
from cfp.profile.profiler import measure_segments
from cfp.report import TerminalProgress

OUT = Path(__file__).parent / "results" / "search_overhead.md"
BATCHES = (8, 32)
LAYERS = (4, 16)
BATCH, DEPTH = 8, 4


@dataclass(frozen=True, slots=True)
class Row:
    layers: int
    batch: int
    store: str
    programs: int
    analysis_s: float
    compiling_s: float
    running_s: float
    search_s: float
    audit_s: float
    overall_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="gpt")
    parser.add_argument("--batches", nargs="*", type=int, default=list(BATCHES))
    parser.add_argument("--layers", nargs="*", type=int, default=list(LAYERS))
    parser.add_argument("--wave", type=int, default=4, help="programs compiled at once")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    cases = dict.fromkeys(
        [(DEPTH, batch) for batch in options.batches] + [(n, BATCH) for n in options.layers]
    )
    rows = []
    for layers, batch in cases:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(run(options.model, layers, batch, Path(folder), options.wave, "empty"))
            if (layers, batch) == list(cases)[-1]:
                rows.append(run(options.model, layers, batch, Path(folder), options.wave, "full"))
        options.out.write_text(render(options.model, rows))
    print(options.out.read_text())


def run(model: str, layers: int, batch: int, folder: Path, wave: int, store: str) -> Row:
    case = make_case(model, batch, (4,), layers=layers, seq=32)
    start = time.monotonic()
    with (
        TerminalProgress(Console(stderr=True)) as progress,
        open_campaign(
            case.mesh,
            cache_dir=folder,
            manner=Manner(effort=replace(USUAL, wave=wave), progress=progress),
        ) as campaign,
    ):
        analysis = analyze(case.step, *case.args, mesh_shape=(4,))
        analysed = time.monotonic()
        profile = measure_segments(campaign, analysis, case.mesh, Scope())
        profiled = time.monotonic()
        compiling_s, running_s = campaign.compiling_s, campaign.running.seconds
        proposals = Proposals(case.step, analysis, case.mesh, profile, pins={}, pinned={})
        proposals.solver.frontier()
        found = proposals.best(None, 3)
        searched = time.monotonic()
        audit(campaign, {str(i): one.plan for i, one in enumerate(found)})
        end = time.monotonic()
    return Row(
        layers,
        batch,
        store,
        profile.compiled + profile.loaded,
        analysed - start,
        # what is left of profiling is laying out and naming the programs
        compiling_s + (profiled - analysed - compiling_s - running_s),
        running_s,
        searched - profiled,
        end - searched,
        end - start,
    )


def render(model: str, rows: list[Row]) -> str:
    lines = [
        "# What planning takes",
        "",
        made_by("bench.search_overhead"),
        "",
        f"{model} of size `small`, seq 32, 4 virtual CPU devices. Seconds. `full`: the case before "
        "it once more, with all measurements in the store.",
        "",
        "| layers | batch | store | programs | AnalysisPasses | ExecCompiling | MetricsProfiling "
        "| ComposeSearch | Audit | overall |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.layers} | {r.batch} | {r.store} | {r.programs} | {r.analysis_s:.1f} | "
        f"{r.compiling_s:.1f} | {r.running_s:.1f} | {r.search_s:.1f} | {r.audit_s:.1f} | "
        f"{r.overall_s:.1f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
