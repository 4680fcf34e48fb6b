"""Time of the search by the number of segments and of plans for each.

`python -m bench.search_scaling` writes bench/results/search_scaling.md. Two sorts of problems:
"repeated" is as real ones are (a first and a last segment, three kinds of layers in between that
repeat, resharding by how tensors lie, a skip from the first to the last), "unstructured" the worst
case (every segment its own, every pair of options its own resharding). The limit is in the middle
between what the smallest and what the fastest plan need.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.environment import made_by
from cfp.search import Node, Problem, Solver
from cfp.search.curve import Falling
from cfp.search.elimination import best_order, build
from cfp.search.frontier import curves
from cfp.search.solve import WORK

RESULTS = Path(__file__).parent / "results"
TARGET_S = 5
LAYERS = 3  # kinds of them
LAYOUTS = 4


def node(rng: np.random.Generator, plans: int) -> Node:
    """Returns a node whose faster plans tend to keep more; sizes are multiples of 512 bytes."""
    times_s = rng.uniform(1e-3, 3e-3, plans)
    kept = rng.uniform(0.5, 1.5, plans) * 1.5e6 / times_s
    scratch = rng.uniform(1e7, 1e9, plans)
    return Node(times_s, kept.astype(np.int64) // 512 * 512, scratch.astype(np.int64) // 512 * 512)


def unstructured(segments: int, plans: int) -> Problem:
    rng = np.random.default_rng(segments + plans)
    nodes = tuple(node(rng, plans) for _ in range(segments))
    edges = {(i, i + 1): rng.uniform(0, 1e-3, (plans, plans)) for i in range(segments - 1)}
    return Problem(nodes, edges)


def repeated(segments: int, plans: int) -> Problem:
    rng = np.random.default_rng(segments + plans)
    kinds = [0, *(1 + i % LAYERS for i in range(segments - 2)), LAYERS + 1]
    made = [node(rng, plans) for _ in range(LAYERS + 2)]
    entry, exit_ = rng.integers(0, LAYOUTS, (2, LAYERS + 2, plans))
    reshard_s = rng.uniform(1e-4, 1e-3, (LAYOUTS, LAYOUTS)) * (1 - np.eye(LAYOUTS))

    def edge(a: int, b: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return reshard_s[np.ix_(exit_[a], entry[b])]

    between = {(a, b): edge(a, b) for a, b in itertools.pairwise(kinds)}
    edges = {(i, i + 1): between[kinds[i], kinds[i + 1]] for i in range(segments - 1)}
    edges[0, segments - 1] = edge(0, LAYERS + 1)
    return Problem(tuple(made[kind] for kind in kinds), edges)


SORTS = {"repeated": repeated, "unstructured": unstructured}


class Row(NamedTuple):
    sort: str
    segments: int
    plans: int
    left: float  # options of a segment after pruning
    states: int
    levels: int
    buckets: int
    points: int
    seconds: float
    slack: float  # of the limit
    frontier_slack: float


def measure(sort: str, segments: int, plans: int) -> Row:
    problem = SORTS[sort](segments, plans)
    ends = Solver(problem, work=1e6).frontier().plans
    limit = (ends[0].memory_bytes + ends[-1].memory_bytes) // 2
    start = time.process_time()
    solver = Solver(problem)
    fastest, frontier = solver.fastest(limit), solver.frontier()
    seconds = time.process_time() - start
    assert fastest is not None
    sub = solver.sub
    order = best_order(sub.problem)
    tables = list(curves(sub, order, WORK))  # once more, for what it does not say otherwise
    known = [known for curve in tables for known in curve.known]
    return Row(
        sort=sort,
        segments=segments,
        plans=plans,
        left=sub.size / segments,
        states=max(len(step.members) for step in build(sub.problem, order).distinct),
        levels=len(tables),
        buckets=max((len(k.times_s) for k in known if isinstance(k, Falling)), default=0),
        points=len(frontier.plans),
        seconds=seconds,
        slack=fastest.slack_bytes / limit,
        frontier_slack=frontier.slack_bytes / limit,
    )


def table(rows: list[Row]) -> str:
    lines = [
        "# Search time by size",
        "",
        f"{made_by('bench.search_scaling')} Seconds of one core for the whole frontier and the "
        f"best plan at a limit in its middle; the target is {TARGET_S} s at 100 segments of 81 "
        "plans. Slack is a share of the limit: no plan that needs so much less is faster than the "
        "one found (0: it is the best there is). Options are those left after pruning. No buckets: "
        "the frontier is known by its corners alone.",
        "",
        "| problem | segments | plans each | options left | states | scratch levels | buckets | "
        "frontier points | seconds | slack at the limit | slack of the frontier |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.sort} | {r.segments} | {r.plans} | {r.left:.1f} | {r.states} | {r.levels} | "
        f"{r.buckets:,} | {r.points:,} | **{r.seconds:.1f}** | {_share(r.slack)} | "
        f"{_share(r.frontier_slack)} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def _share(value: float) -> str:
    return "0" if value == 0 else f"{value:.2%}" if value >= 5e-5 else f"{value:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, nargs="+", default=[12, 30, 100, 300, 1000])
    parser.add_argument("--plans", type=int, nargs="+", default=[9, 27, 81])
    options = parser.parse_args()
    rows: list[Row] = []
    for sort in SORTS:
        for segments in options.segments:
            for plans in options.plans:
                rows.append(measure(sort, segments, plans))
                print(rows[-1], file=sys.stderr, flush=True)
    RESULTS.mkdir(exist_ok=True)
    text = table(rows)
    (RESULTS / "search_scaling.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
