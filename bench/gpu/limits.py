"""The paper's figure 9 at its size: LLaMA-7B for 8 GPUs of 40 GB and of 80 GB, as it grows.

Batch and layers grow. At each size CFP plans within what a program has of such a GPU, from one
local GPU that stands in for 8. Beside its plan run the templates that save memory, and FSDP with
every segment keeping only what comes in, as with `jax.checkpoint` around each layer. A plan fits if
the compiler says that its step needs no more than the limit.

`python -m bench.gpu.limits` writes results/gpu_limits.md. A case that has its file under
`results/gpu_limits` is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cfp
from bench.environment import environment
from bench.gpu.cases import RESULTS, Case, has_gpu
from bench.planned import checkpointed, splits_of
from cfp import Plan
from cfp.errors import CfpError
from cfp.memory_size import parse_memory
from cfp.templates.by_name import make_templates

LINKS = "h200_nvlink"
OURS, FSDP, CHECKPOINTED = "cfp", "fsdp", "fsdp, checkpointed"
TEMPLATES = ("zero1", FSDP, "megatron_sp")
NAMES = (OURS, *TEMPLATES, CHECKPOINTED)
ROUNDS = 2  # a replay is of the kernels of one: more of them would give the same
# What a program has of a GPU of 40 GB and of 80 GB: 90 % of 40 and 80 GiB. Most telling first.
SIZES = (
    ("36GiB", 16, 32),
    ("72GiB", 80, 32),  # the batch of the paper
    ("36GiB", 32, 32),
    ("72GiB", 16, 48),
    ("72GiB", 16, 32),
)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.limits", description=__doc__)
    parser.add_argument("--first", type=int, default=len(SIZES), help="how many of the cases")
    parser.add_argument("--budget", default="150s", help="of planning each case")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_limits", help="a file for each")
    parser.add_argument("--cache", type=Path, default=Path("gpu-cache"), help="the store")
    given = parser.parse_args(words)
    if not has_gpu("bench.gpu.limits"):
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    for memory, batch, layers in SIZES[: given.first]:
        case = Case("llama", (8,), LINKS, batch, layers, memory)
        path = given.out / case.file
        if not path.exists():
            print(case.name, file=sys.stderr)
            path.write_text(json.dumps(run(case, given.cache, given.budget), indent=1) + "\n")
    rows = [json.loads(path.read_text()) for path in sorted(given.out.glob("*.json"))]
    given.out.with_suffix(".md").write_text(page(rows))
    return 0


def run(case: Case, cache: Path, budget: str) -> dict[str, Any]:
    """Plans a case and replays its plan beside the templates; returns what the table says of it,
    as plain data."""
    step, args = case.step()
    mesh = case.abstract_mesh
    assert case.memory is not None
    plans: dict[str, Plan | str] = make_templates(TEMPLATES, step, args, mesh)
    fsdp = plans[FSDP]
    plans[CHECKPOINTED] = fsdp if isinstance(fsdp, str) else checkpointed(fsdp)
    began = time.monotonic()
    ours: dict[str, Any] = {"device": "", "predicted": None, "splits": ""}
    try:
        plan = plans[OURS] = cfp.plan(
            step,
            *args,
            mesh=mesh,
            links=case.links,
            budget=budget,
            memory_limit=case.memory,
            cache_dir=cache,
            progress=True,
        )
        assert plan.predicted is not None
        ours["device"], ours["splits"] = plan.environment.device_kind, splits_of(plan)
        ours["predicted"] = plan.predicted.time_s, plan.predicted.memory_bytes
    except CfpError as error:
        plans[OURS] = str(error)
    seconds = time.monotonic() - began
    found = cfp.compare(
        step, *args, mesh=mesh, plans=plans, rounds=ROUNDS, links=case.links, progress=True
    )
    ran = [one for one in found.plans if one.failed is None]
    return {
        "case": case.name,
        **ours,
        "environment": environment(),
        "seconds": seconds,
        "limit_bytes": parse_memory(case.memory),
        "steps": {one.name: (one.time_s, one.memory_bytes) for one in ran},
        "why": {one.name: one.failed for one in found.plans if one.failed is not None},
    }


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page in Markdown: what each plan takes where it fits, and CFP's plans."""
    devices = ", ".join(sorted({row["device"] for row in rows if row["device"]}))
    lines = [
        "# Memory limits on GPUs",
        "",
        f"`python -m bench.gpu.limits` on one {devices}; {rows[0]['environment']}. Kernels are "
        "measured, communication is replayed with links. Milliseconds of a step; in brackets the "
        "GiB that it needs; `-` where that is more than the limit in the case's name.",
        "",
        f"| case | planned in | {' | '.join(NAMES)} | predicted |",
        "|---|---|" + "---|" * (len(NAMES) + 1),
    ]
    for row in rows:
        cells = [_cell(row["steps"].get(name), row["limit_bytes"]) for name in NAMES]
        predicted = "-" if row["predicted"] is None else _step(*row["predicted"])
        cells = [row["case"], f"{row['seconds']:.0f} s", *cells, predicted]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "CFP's plans:", ""]
    lines += [f"- {row['case']}: {row['splits'] or row['why'][OURS]}" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(step: Sequence[float] | None, limit_bytes: int) -> str:
    return "-" if step is None or step[1] > limit_bytes else _step(*step)


def _step(time_s: float, size_bytes: float) -> str:
    return f"{time_s * 1e3:.1f} ({size_bytes / 2**30:.1f})"


if __name__ == "__main__":
    sys.exit(main())
