"""The links that come with CFP, fitted to published NCCL measurements, and how well they fit.

`python -m bench.links NCCL.csv` writes src/cfp/links/shipped/*.toml and bench/results/links.md. The
csv is made of aiconfigurator's files nccl_perf.parquet (see `SOURCE`), with the columns system,
nccl, op_name, num_gpus, bytes (of the whole tensor, as nccl-tests counts) and latency_us. Every
curve becomes `REGIMES` straight lines that join, rise, and leave the least sum of squared relative
errors; the sizes where they join are the best of all choices. Links between machines are made of
published constants instead, for want of measurements.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from bench.environment import made_by
from cfp.links import Curve, FitError, Link
from cfp.links.file import show_file
from cfp.links.link import COLLECTIVES, PERMUTE, REQUIRED, Scope, wire_factor

ROOT = Path(__file__).parent.parent
SHIPPED = ROOT / "src" / "cfp" / "links" / "shipped"
RESULTS = ROOT / "bench" / "results"
REGIMES = 4  # three leave 2.6 % in the median and miss a protocol; with five the noise is fitted
KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
}
SOURCE = (
    "NCCL {nccl} inside one node, half precision, as nccl-tests reports it: NVIDIA aiconfigurator "
    "(github.com/ai-dynamo/aiconfigurator, Apache-2.0), snapshot of 2026-08-21; fitted by "
    "bench/links.py"
)
# by the name of a system in the csv: the link's name, and how its devices' names begin
SYSTEMS = {
    "a100_sxm": ("a100_nvlink", "NVIDIA A100"),
    "h100_sxm": ("h100_nvlink", "NVIDIA H100"),
    "h200_sxm": ("h200_nvlink", "NVIDIA H200"),
    "b200_sxm": ("b200_nvlink", "NVIDIA B200"),
    "b300_sxm": ("b300_nvlink", "NVIDIA B300"),
    "gb200": ("gb200_nvlink", "NVIDIA GB200"),
    "gb300": ("gb300_nvlink", "NVIDIA GB300"),
    "l40s": ("l40s_pcie", "NVIDIA L40S"),
    "rtx_pro_6000_server": ("rtx_pro_6000_pcie", "NVIDIA RTX PRO 6000"),
}
LAUNCH_US, ROUND_TRIP_US = 45.0, 31.0  # XLA's speed-of-light model of collectives, for H100
# an all-reduce over 8 H100 in GB/s of the tensor, by megabytes: the table that XLA's scheduler has
# (xla/service/gpu/model/default_collective_perf_table.txtpb)
XLA_H100 = {1: 20.0, 16: 116.0, 256: 213.0}
BANDS = ((2**15, "up to 32 KiB"), (2**21, "to 2 MiB"), (2**25, "to 32 MiB"), (2**62, "above"))

Array = npt.NDArray[np.float64]
Points = tuple[Array, Array]  # bytes and seconds


@dataclass(frozen=True, slots=True)
class Miss:
    """How far a curve is from one measurement; `alone` if it was fitted without that size."""

    link: str
    kind: str
    group: int
    bytes: int
    fitted: float
    alone: float


def read(path: Path) -> tuple[dict[tuple[str, str, int], Points], dict[str, str]]:
    """Returns bytes and seconds by system, collective and group, and NCCL's version by system."""
    rows: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    versions: dict[str, str] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            versions[row["system"]] = row["nccl"]
            key = row["system"], KINDS[row["op_name"]], int(row["num_gpus"])
            rows[key].append((float(row["bytes"]), 1e-6 * float(row["latency_us"])))
    found = {}
    for key, points in rows.items():
        sizes, times_s = np.array(sorted(points)).T
        found[key] = sizes, times_s
    return found, versions


def fit(sizes: Array, times_s: Array, regimes: int = REGIMES) -> Curve:
    """Returns the curve of the fewest squared relative errors with so many regimes.

    A rising curve is a sum of ramps, one per regime, with weights that are not negative.
    """
    best = math.inf, Curve((1, 2), (1.0, 1.0))
    ones = np.ones(len(sizes))
    for inner in itertools.combinations(range(1, len(sizes) - 1), regimes - 1):
        knots = sizes[[0, *inner, -1]]
        ramps = [np.clip((sizes - a) / (b - a), 0, 1) for a, b in itertools.pairwise(knots)]
        weights, left = nnls(np.stack([ones, *ramps], axis=1) / times_s[:, None], ones)
        if left < best[0]:
            best = left, Curve(tuple(map(int, knots)), tuple(np.cumsum(weights).tolist()))
    return best[1]


def misses(whole: Curve, name: str, kind: str, group: int, points: Points) -> Iterator[Miss]:
    """Returns the curve's relative error at every size, fitted with it and without it."""
    sizes, times_s = points
    for i, (size, time_s) in enumerate(zip(sizes, times_s, strict=True)):
        others = np.arange(len(sizes)) != i
        without = fit(sizes[others], times_s[others])
        errors = [abs(curve.time_s(size) / time_s - 1) for curve in (whole, without)]
        yield Miss(name, kind, group, int(size), *map(float, errors))


def by_constants(
    name: str, gb_per_s: float, latency_us: Mapping[tuple[str, int], float], source: str
) -> Link:
    """Returns a link of straight lines: time = latency + wire factor x bytes / bandwidth."""
    tables: dict[str, dict[int, Curve]] = {}
    for (kind, group), latency in latency_us.items():
        ends = (1, 2**30)
        slope = wire_factor(kind, group) / (1e9 * gb_per_s)
        times_s = tuple(1e-6 * latency + slope * size for size in ends)
        tables.setdefault(kind, {})[group] = Curve(ends, times_s)
    scope: Scope = "network" if name.startswith("ib_") else "node"
    device = None if scope == "network" else "NVIDIA A100-PCIE"
    return Link(name, scope, device, source, None, tables)


def constant_links(a100: Link) -> list[Link]:
    """Returns the links that nothing measured is published of.

    Latency is linear in log2 n between groups of 2 and 64, as the links' model fills it in: a
    launch, and a round trip for every step of a tree, twice for an all-reduce.
    """
    steps = {
        (kind, n): 1.0 if kind == PERMUTE else math.log2(n) * (2 if kind == "all-reduce" else 1)
        for kind in COLLECTIVES
        for n in (2, 64)
    }
    latency_us = {key: LAUNCH_US + ROUND_TRIP_US * count for key, count in steps.items()}
    xla = (
        f"; latency by XLA's speed-of-light model for H100 ({LAUNCH_US:g} us launch, "
        f"{ROUND_TRIP_US:g} us a round trip and step of a tree). Published constants, not a fit"
    )
    nic = "{} Gbit/s a GPU: {} GB/s a GPU by SimAI's constants for ConnectX-{}" + xla
    pcie_us = {
        (kind, n): 1e6 * curve.latency_s
        for kind, curves in a100.tables.items()
        for n, curve in curves.items()
    }
    pcie = (
        "A100 over PCIe: 25 GB/s by SimAI's constants; latency as of a100_nvlink. Published "
        "constants, not a fit"
    )
    return [
        by_constants("ib_400g", 48.0, latency_us, nic.format(400, 48, 7)),
        by_constants("ib_200g", 23.5, latency_us, nic.format(200, 23.5, 6)),
        by_constants("a100_pcie", 25.0, pcie_us, pcie),
    ]


def comment(link: Link) -> str:
    what = "NVLink" if link.name.endswith("nvlink") else "PCIe"
    if link.scope == "network":
        return "InfiniBand between machines, a network card for every GPU."
    return f"{what} between the GPUs of one machine."


def share(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1%} ({max(values):.0%})"


def table(found: Sequence[Miss], h100: Link, constants: Sequence[Link]) -> str:
    """Returns the page: errors by link, collective and size."""
    fitted = [miss.fitted for miss in found]
    alone = [miss.alone for miss in found]
    worst = max(found, key=lambda miss: miss.fitted)
    lines = [
        "# Links: how well they fit",
        "",
        f"{made_by('bench.links')}",
        "",
        f"Each curve of published NCCL times (21 sizes, 512 B to 512 MiB) became {REGIMES} "
        "straight lines. Relative errors are medians, with the worst in parentheses. `left out` is "
        "the error at a size that the curve was fitted without; the smallest and the largest size "
        "are among them, where it is extrapolated.",
        "",
        f"All {len(found)} measurements: fitted {share(fitted)}, left out {share(alone)}. The "
        f"worst fit is {worst.kind} of {worst.bytes} bytes over {worst.group} on {worst.link}.",
        "",
        "## By hardware and collective",
        "",
        "| link | " + " | ".join(REQUIRED) + " | all | all, left out |",
        "|---" * (len(REQUIRED) + 3) + "|",
    ]
    for name in dict.fromkeys(miss.link for miss in found):
        own = [miss for miss in found if miss.link == name]
        cells = [share([m.fitted for m in own if m.kind == kind]) for kind in REQUIRED]
        cells += [share([m.fitted for m in own]), share([m.alone for m in own])]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "## By size", "", "| bytes | fitted | left out |", "|---|---|---|"]
    low = 0
    for high, words in BANDS:
        own = [miss for miss in found if low < miss.bytes <= high]
        by_fit, left_out = share([m.fitted for m in own]), share([m.alone for m in own])
        lines.append(f"| {words} | {by_fit} | {left_out} |")
        low = high
    lines += ["", "## Beside another source", ""]
    said = ", ".join(
        f"{size} MB: {size / h100.time_s('all-reduce', 8, 1e6 * size) / 1e3:.0f} ({theirs:.0f})"
        for size, theirs in XLA_H100.items()
    )
    lines.append(
        "An all-reduce over 8 H100 in GB/s of the tensor, by `h100_nvlink`, and in parentheses by "
        f"the table that XLA's scheduler has: {said}."
    )
    lines += ["", "## Not fitted", ""]
    lines += [f"- `{link.name}`: {link.source}. Its error is unknown." for link in constants]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    path: Path = parser.parse_args().csv
    measured, versions = read(path)
    found: list[Miss] = []
    links: list[Link] = []
    for system, (name, device) in SYSTEMS.items():
        tables: dict[str, dict[int, Curve]] = {kind: {} for kind in REQUIRED}
        for (other, kind, group), points in measured.items():
            if other == system:
                tables[kind][group] = curve = fit(*points)
                found += misses(curve, name, kind, group, points)
        own = [miss.fitted for miss in found if miss.link == name]
        error = FitError(statistics.median(own), max(own))
        source = SOURCE.format(nccl=versions[system])
        links.append(Link(name, "node", device, source, error, tables))
        print(name, share(own), flush=True)
    constants = constant_links(links[0])
    for link in (*links, *constants):
        (SHIPPED / f"{link.name}.toml").write_text(show_file([link], comment(link)))
    h100 = next(link for link in links if link.name == "h100_nvlink")
    text = table(found, h100, constants).replace(str(path), path.name)
    (RESULTS / "links.md").write_text(text)


if __name__ == "__main__":
    main()
