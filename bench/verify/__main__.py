"""Verifies many plans of many steps numerically.

    python -m bench.verify --jobs 2

writes `bench/results/verify_sweep.md`. Results are kept as they are made, in the state file: an
interrupted sweep goes on where it stopped, and one with failures tries those again. To make one
plan again and see why it fails: `python -m bench.verify --only 'gpt/2x2/random-3'`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.verify.case import Case, Result
from bench.verify.cases import MESHES, STEPS, make_cases
from bench.verify.pool import run
from bench.verify.report import table
from cfp.errors import CfpError

OUT = Path(__file__).parent.parent / "results" / "verify_sweep.md"
STATE = Path(".verify_sweep.jsonl")


def main(argv: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        cases = make_cases(options.models, options.meshes, random=options.random, seed=options.seed)
    except CfpError as error:
        print(error, file=sys.stderr)
        return 2
    if options.only:
        cases = [case for case in cases if fnmatch.fnmatch(str(case), options.only)]
    if options.fresh:
        options.state.unlink(missing_ok=True)
    done = {} if options.only else read_state(options.state, cases)
    todo = [case for case in cases if case not in done]
    for result in told(todo, options.jobs):
        done[result.case] = result
        with options.state.open("a") as state:
            state.write(json.dumps(result.to_json()) + "\n")
        if options.only and result.detail:
            print(result.detail, file=sys.stderr)
    results = [done[case] for case in cases]
    text = table(results, command(options))
    if not options.only:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    print(text)
    return int(any(result.status == "failed" for result in results))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", type=_words, default=tuple(STEPS), help="some of the steps")
    parser.add_argument("--meshes", type=_words, default=MESHES, help="as 2,4,2x2,8")
    parser.add_argument("--random", type=int, default=12, help="random plans of each step")
    parser.add_argument("--seed", type=int, default=0, help="of the random plans")
    parser.add_argument("--only", help="a pattern of names, as 'gpt/2x2/*': writes no table")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--out", type=Path, default=OUT, help="where the table goes")
    parser.add_argument("--state", type=Path, default=STATE, help="results so far")
    parser.add_argument("--fresh", action="store_true", help="forget the results so far")
    return parser.parse_args(argv)


def command(options: argparse.Namespace) -> str:
    """Returns what makes the same plans again; where files go is left out."""
    default = parse([])
    words = ["python -m bench.verify"]
    for name in ("models", "meshes", "random", "seed", "only"):
        value = getattr(options, name)
        if value != getattr(default, name):
            words.append(f"--{name} {','.join(value) if isinstance(value, tuple) else value}")
    return " ".join(words)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_state(path: Path, cases: Sequence[Case]) -> dict[Case, Result]:
    """Returns what earlier runs found for these cases, failures left out. A torn last line is
    skipped."""
    if not path.exists():
        return {}
    wanted = set(cases)
    found: dict[Case, Result] = {}
    for line in path.read_text().splitlines():
        try:
            result = Result.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
        if result.case in wanted and result.status != "failed":
            found[result.case] = result
    return found


def told(cases: Sequence[Case], jobs: int) -> Iterator[Result]:
    """Yields the results of the cases, shown on stderr as they come."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    failed = 0
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("verify", total=len(cases))
        for result in run(cases, jobs):
            failed += result.status == "failed"
            if result.status != "ok":
                progress.console.print(
                    f"{result.status} {result.case}: {result.message}", markup=False
                )
            yield result
            progress.update(task, advance=1, description=f"{result.case} ({failed} failed)")


if __name__ == "__main__":
    sys.exit(main())
