"""How often, and by how much, the best blocks' plan loses on small random steps.

    python -m bench.theorem --seeds 1000

writes `bench/results/theorem.md`. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import highspy
import jax

from bench.theorem.graphs import as_step, random_recipe
from bench.theorem.solve import solve
from bench.theorem.spaces import Rules, Silent, build_problem
from cfp.blocks import build_blocks
from cfp.trace import trace

PARTS = (2, 4)
READINGS: dict[str, Rules] = {
    "whole": Rules(silent=Silent.WHOLE),
    "deliver": Rules(silent=Silent.DELIVER),
}
PRICES = {"activations": False, "activations and weights": True}
OUT = Path(__file__).parent.parent / "results" / "theorem.md"


@dataclass(slots=True)
class Row:
    """One comparison: pairs (better, worse) of optima, in units, and the seeds that differ."""

    name: str
    pairs: list[tuple[int, int]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def add(self, seed: int, better: int, worse: int) -> None:
        if worse < better:
            raise AssertionError(f"seed {seed}: {self.name}: a smaller space has a better plan")
        self.pairs.append((better, worse))
        if worse > better:
            self.seeds.append(seed)

    def cells(self) -> list[str]:
        gaps = [(a, b) for a, b in self.pairs if b > a]
        ratios = [b / a for a, b in gaps if a]
        share = f"{len(gaps)} ({100 * len(gaps) / max(1, len(self.pairs)):.1f} %)"
        median = f"{statistics.median(ratios):.2f}" if ratios else "-"
        most = f"{max(ratios):.2f}" if ratios else "-"
        nothing = str(sum(a == 0 for a, _ in gaps))
        first = " ".join(map(str, self.seeds[:5])) or "-"
        return [self.name, str(len(self.pairs)), share, median, most, nothing, first]


def probe(seeds: Iterable[int]) -> list[Row]:
    rows: dict[str, Row] = {}

    def add(name: str, seed: int, better: int, worse: int) -> None:
        rows.setdefault(name, Row(name)).add(seed, better, worse)

    for seed in seeds:
        step, args = as_step(random_recipe(seed))
        graph = trace(step, *args)
        for parts in PARTS:
            blocks = build_blocks(graph, (parts,))
            for price, weights in PRICES.items():
                where = f"P = {parts}, {price}"
                wide = build_problem(graph, blocks, parts, Rules(weights=weights, wide=True))
                widest = solve(wide, blocks=False).units
                operators: int | None = None
                for reading, rules in READINGS.items():
                    rules = replace(rules, weights=weights)
                    problem = build_problem(graph, blocks, parts, rules)
                    if operators is None:
                        operators = solve(problem, blocks=False).units
                        add(f"{where}: seeds' dims against all dims", seed, widest, operators)
                    inside = solve(problem, blocks=True).units
                    add(f"{where}: blocks ({reading})", seed, operators, inside)
    return list(rows.values())


def table(rows: list[Row], count: int, first: int, seconds: float) -> str:
    head = ["comparison", "steps", "gaps", "median ratio", "largest ratio", "from 0", "first seeds"]
    lines = [
        "# Theorem 1 on small random steps",
        "",
        f"`python -m bench.theorem --seeds {count} --first {first}`, {seconds:.0f} s; "
        f"jax {jax.__version__}, python {platform.python_version()}, "
        f"HiGHS {highspy.Highs().version()}, {platform.machine()}.",
        "",
        "How often the best plan of the blocks' space moves more bytes than the best per-operator",
        "plan, both exact. Prices and readings are those of `bench/theorem/__init__.py` and",
        "`bench/theorem/spaces.py`. Ratios are over the steps with a gap whose best plan moves",
        "anything; `from 0` counts those whose best moves nothing. The rows `seeds' dims against",
        "all dims` are for information: what restricting a contraction to the seeds' candidate",
        "dims costs by itself, without any blocks.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "|".join(["---"] + ["---:"] * 5 + ["---"]) + "|",
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.theorem", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many random steps")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=OUT, help="where the table goes")
    chosen = parser.parse_args(argv)
    start = time.perf_counter()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    rows = probe(_told(seeds, start))
    text = table(rows, chosen.seeds, chosen.first, time.perf_counter() - start)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(text)
    print(text)


def _told(seeds: range, start: float) -> Iterable[int]:
    for done, seed in enumerate(seeds):
        if done % 50 == 0:
            seconds = time.perf_counter() - start
            print(f"{done} of {len(seeds)} steps, {seconds:.0f} s", file=sys.stderr, flush=True)
        yield seed


if __name__ == "__main__":
    main()
