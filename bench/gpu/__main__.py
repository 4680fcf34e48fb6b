"""Runs the cases that have no file yet, and writes the page: `python -m bench.gpu --help`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.gpu.cases import BATCH, MESHES, NETWORKS, RESULTS, SIZES, cases, has_gpu, run
from bench.gpu.table import page, read


def shape_of(text: str) -> tuple[int, ...]:
    """Returns the shape of a mesh of the cases."""
    shape = tuple(map(int, text.split("x")))
    if shape not in MESHES:
        raise argparse.ArgumentTypeError(f"there is no case of a mesh {text}")
    return shape


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--meshes", nargs="+", type=shape_of, default=[*MESHES], help="8, 2x8")
    parser.add_argument("--links", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--batch", type=int, default=BATCH, help="the paper's LLaMA has 80")
    parser.add_argument("--layers", type=int, help="fewer than the paper's")
    parser.add_argument("--memory", help="of a device, as 36GiB; by default the local one's")
    parser.add_argument("--budget", default="9m", help="for each case; full steps are in it")
    parser.add_argument("--audit", type=int, default=3, help="predictions that run as full steps")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="a file for each case")
    parser.add_argument("--cache", type=Path, default=Path("gpu-cache"), help="the store")
    given = parser.parse_args(words)
    if not has_gpu("bench.gpu"):
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = {"batch": given.batch, "layers": given.layers, "memory": given.memory}
    for case in cases(given.models, given.meshes, given.links, **sizes):
        path = given.out / case.file
        if not path.exists():
            print(case.name, file=sys.stderr)
            found = run(case, given.cache, given.budget, given.audit)
            path.write_text(json.dumps(found, indent=1) + "\n")
    rows = read(given.out)
    given.out.with_suffix(".md").write_text(page(rows, "python -m bench.gpu"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
