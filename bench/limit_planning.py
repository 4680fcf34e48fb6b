"""What a memory limit adds to the time of planning.

A step is planned without a limit, and with limits that bind: shares of what the plan without one
needs. Every time the store is empty at first. What is measured, in programs:

    segments     under their options, as the step keeps things for its backward pass
    levels       the same, keeping less
    small        reshardings, and what starting a program takes
    full steps   to choose a plan, and to confirm it

`python -m bench.limit_planning` writes bench/results/limit_planning.md. Stopped, it goes on where
it was (`--store`). What counts are ratios: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

import cfp
from bench.environment import made_by
from bench.planned import SHAPE, make_case
from cfp.errors import CfpError
from cfp.profile import Store
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.progress import FULL_STEP, kind_of
from cfp.profile.measure.rounds import USUAL
from cfp.report import TerminalProgress

OUT = Path(__file__).parent / "results" / "limit_planning.md"
SHARES = (0.9, 0.75)  # of what the plan without a limit needs
SORTS = ("segments", "levels", "small", FULL_STEP)
BATCH, LAYERS = 32, 2  # more layers are the same programs, but for larger full steps


@dataclass(frozen=True, slots=True)
class Row:
    """Planning once. Without a limit `share` and `limit_bytes` are None; `programs` are counted by
    sort, and `spent` has the seconds of each stage. Where no plan fits, `why` says so."""

    share: float | None
    limit_bytes: int | None
    seconds: float
    spent: dict[str, float]
    programs: dict[str, int]
    needs_bytes: int | None
    step_s: float | None
    why: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="gpt")
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES))
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--wave", type=int, default=USUAL.wave, help="programs compiled at once")
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.store.mkdir(parents=True, exist_ok=True)
    done = options.store / "limit_planning.json"
    rows = [Row(**row) for row in json.loads(done.read_text())] if done.exists() else []
    for share in (None, *options.shares):
        if share not in {row.share for row in rows}:
            rows.append(run(share, rows, options))
            done.write_text(json.dumps([asdict(row) for row in rows]))
            options.out.write_text(render(rows, options))
    print(render(rows, options))


def run(share: float | None, before: list[Row], options: argparse.Namespace) -> Row:
    """Plans once; a limit is a share of what the first of the rows `before` needs."""
    case = make_case(options.model, options.batch, (4,), layers=options.layers)
    limit = None
    if share is not None:
        assert before[0].needs_bytes is not None  # a plan without a limit was found
        limit = int(share * before[0].needs_bytes)
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        plan, why = None, ""
        with TerminalProgress(Console(stderr=True)) as progress:
            try:
                plan = cfp.plan(
                    case.step,
                    *case.args,
                    mesh=case.mesh,
                    memory_limit=limit,
                    cache_dir=folder,
                    effort=replace(USUAL, wave=options.wave),
                    progress=progress,
                )
            except CfpError as error:
                why = str(error)
        seconds = time.monotonic() - start
        with Store.open(folder) as store:
            measured = [Measurement.from_json(one.document) for one in store.entries()]
    evidence = None if plan is None else plan.evidence
    return Row(
        share=share,
        limit_bytes=limit,
        seconds=seconds,
        spent={} if evidence is None else {one.stage: one.seconds for one in evidence.spent},
        programs=sorts_of(one.name for one in measured),
        needs_bytes=None if plan is None else plan.memory_bytes(),
        step_s=None if evidence is None or evidence.own is None else evidence.own.time_s,
        why=why,
    )


def sorts_of(names: Iterable[str]) -> dict[str, int]:
    """Returns how many programs of each sort there are; one that ran again counts once."""

    def sort(name: str) -> str:
        kind = kind_of(name)
        if "segment" in kind:
            return "levels" if "keeps" in name else "segments"
        return kind if kind == FULL_STEP else "small"

    return dict(Counter(map(sort, set(names))))  # `asdict` does not copy a `Counter`


def render(rows: list[Row], options: argparse.Namespace) -> str:
    stages = dict.fromkeys(stage for row in rows for stage in row.spent)
    head = ["limit MiB (share)", "overall", "ratio", *stages, *SORTS, "step ms", "MiB"]
    lines = [
        "# What a memory limit adds to planning",
        "",
        made_by("bench.limit_planning"),
        "",
        f"{options.model} of size `small`, {options.layers} layers, batch {options.batch}, seq "
        f"{SHAPE['seq']}, 4 virtual CPU devices, an empty store each time. Seconds, programs by "
        "sort, and the plan's own step. Limits are shares of what the plan without one needs.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for row in rows:
        limit = "none"
        if row.limit_bytes is not None:
            limit = f"{row.limit_bytes / 2**20:.1f} ({row.share:g})"
        cells = [limit, f"{row.seconds:.0f}", f"{row.seconds / rows[0].seconds:.2f}"]
        cells += [f"{row.spent[stage]:.0f}" if stage in row.spent else "" for stage in stages]
        cells += [str(row.programs.get(sort, 0)) for sort in SORTS]
        cells.append("-" if row.step_s is None else f"{row.step_s * 1e3:.1f}")
        cells.append("-" if row.needs_bytes is None else f"{row.needs_bytes / 2**20:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {row.share:g}: {row.why}" for row in rows if row.why)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
