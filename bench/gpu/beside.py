"""Measures the templates that the budget of a case left no time for.

`python -m bench.gpu.beside --models gpt` adds them to the files of `python -m bench.gpu`. Full
steps are in the store, and any links can be replayed of them: cases that differ in their links
share them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import cfp
from bench.gpu.__main__ import shape_of
from bench.gpu.cases import MESHES, RESULTS, SIZES, Case, cases, has_gpu
from bench.gpu.table import page, read
from cfp import Plan
from cfp.layouts import auto_mesh
from cfp.links import find_links
from cfp.planning.audit import NO_TIME
from cfp.profile import Effort
from cfp.profile.api import Manner, open_campaign
from cfp.profile.measure.full_step import measure_steps
from cfp.profile.measure.rounds import FEW
from cfp.report.progress import shown
from cfp.templates.by_name import make_templates

AT_ONCE = 3  # full steps that are compiled side by side: what is measured is kept after as many


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.beside", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--meshes", nargs="+", type=shape_of, default=[*MESHES], help="8, 2x8")
    parser.add_argument("--templates", nargs="+", default=cfp.templates.__all__)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="a file for each case")
    parser.add_argument("--cache", type=Path, default=Path("gpu-cache"), help="the store")
    given = parser.parse_args(words)
    if not has_gpu("bench.gpu.beside"):
        return 1
    for model, mesh in itertools.product(given.models, given.meshes):
        for names in _waves(given.templates):
            for case in cases([model], [mesh], MESHES[mesh]):
                path = given.out / case.file
                if path.exists():
                    add(path, case, names, given.cache)
    rows = read(given.out)
    given.out.with_suffix(".md").write_text(page(rows, "python -m bench.gpu"))
    return 0


def _waves(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[at : at + AT_ONCE] for at in range(0, len(names), AT_ONCE)]


def add(path: Path, case: Case, names: Sequence[str], cache: Path) -> None:
    """Measures the templates of these names that the case's file has no time of, and adds them."""
    row = json.loads(path.read_text())
    missing = [one for one in names if NO_TIME in str(row["ratios"].get(one, NO_TIME))]
    if not missing or row["replayed_s"] is None:
        return
    step, args = case.step()
    mesh = auto_mesh(case.abstract_mesh)
    plans = make_templates(missing, step, args, mesh)
    bound = {n: plan.bind(step, *args) for n, plan in plans.items() if isinstance(plan, Plan)}
    known = {name: plan.known("bench") for name, plan in bound.items()}
    steps = {name: (one.analysis, one.layouts) for name, one in known.items()}
    network = find_links(case.links, dict(mesh.shape))
    with shown(True) as telling:
        manner = Manner(effort=Effort(repeats=FEW), progress=telling)
        with open_campaign(mesh, cache_dir=cache, manner=manner, network=network) as campaign:
            found = measure_steps(campaign, mesh, steps)
    for name, plan in plans.items():
        one = found.get(name)
        if isinstance(plan, str):
            row["ratios"][name] = f"does not run: {plan}"
        elif one is not None and one.failed is not None:
            row["ratios"][name] = f"does not run: {one.failed}"
        elif one is not None:
            row["ratios"][name] = one.usual_s / row["replayed_s"]
    path.write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
