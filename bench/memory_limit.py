"""What a memory limit does: the step's time under limits from generous to impossible.

On 4 virtual CPU devices, which have no limit of their own. Limits are shares of what CFP's plan
without a limit needs, or `just` what "FSDP, checkpointed" needs, so that it fits exactly. At each,
CFP plans with recomputation and without, and both plans run in turn with the templates that fit. A
plan fits if the compiler says that its step needs no more. "FSDP, checkpointed" is FSDP in which
every segment keeps what comes in and computes the rest again, as with `jax.checkpoint` around each:
XLA's compiler for CPUs undoes the hand-written form outside of loops (`cfp.layouts.constrain`), so
CFP's own stands for it.

`python -m bench.memory_limit` writes bench/results/memory_limit.md. Stopped, it goes on where it
was (`--store`). For times worth keeping run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import cfp
from bench.environment import made_by
from bench.planned import MODELS, SHAPE, Case, checkpointed, make_case, splits_of
from cfp import Plan
from cfp.errors import CfpError
from cfp.memory_size import bytes_text
from cfp.planning.compare import ComparedPlan
from cfp.profile.measure.confidence import Verdict, judge
from cfp.profile.measure.rounds import USUAL
from cfp.report import TerminalProgress
from cfp.templates.by_name import make_templates

OUT = Path(__file__).parent / "results" / "memory_limit.md"
TEMPLATES = ("data_parallel", "megatron", "megatron_sp", "zero1", "fsdp")
CHECKPOINTED = "fsdp, checkpointed"
OURS = {"cfp": "auto", "cfp without recomputation": "as written"}  # name -> `recompute`
NAMES = (*OURS, *TEMPLATES, CHECKPOINTED)
JUST = "just"  # the limit at which `CHECKPOINTED` fits exactly
SHARES = ("1.2", JUST, "0.75", "0.6", "0.5", "0.4", "0.3")  # of what the plan without a limit needs
BATCH = 64  # activations are most of the memory


@dataclass(frozen=True, slots=True)
class Row:
    """One limit of one model, as it was `asked` for. `steps` has seconds and bytes of the plans
    that fit and ran, `verdicts` what their rounds show beside CFP's, and `why` the reason of those
    that are not there. `predicted_bytes` and `splits` are of CFP's plan."""

    model: str
    share: float
    limit_bytes: int
    steps: dict[str, tuple[float, int]]
    verdicts: dict[str, str]
    why: dict[str, str]
    predicted_bytes: int | None
    splits: str
    asked: str
    mesh: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--shares", default=",".join(SHARES))
    parser.add_argument("--mesh", default="4", help="as 2x2")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--layers", type=int, default=None, help="of every model")
    parser.add_argument("--size", default="small")
    parser.add_argument("--rounds", type=int, default=16, help="in which the plans run in turn")
    parser.add_argument("--store", type=Path, default=Path(".bench_store"))
    parser.add_argument("--wave", type=int, default=4, help="programs compiled at once")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.store.mkdir(parents=True, exist_ok=True)
    done = options.store / "memory_limit.json"
    rows = [Row(**row) for row in json.loads(done.read_text())] if done.exists() else []
    mesh = tuple(map(int, options.mesh.split("x")))
    known = {(row.model, row.asked, tuple(row.mesh)) for row in rows}
    for model in options.models.split(","):
        shares = options.shares.split(",")
        todo = [share for share in shares if (model, share, mesh) not in known]
        for row in run(model, mesh, todo, options) if todo else ():
            rows.append(row)
            done.write_text(json.dumps([asdict(row) for row in rows]))
            options.out.write_text(render(rows, options.batch))
    print(render(rows, options.batch))


def run(model: str, mesh: tuple[int, ...], shares: list[str], options: argparse.Namespace) -> Any:
    """Yields the rows of a model."""
    sizes = {} if options.layers is None else {"layers": options.layers}
    case = make_case(model, options.batch, mesh, size=options.size, **sizes)
    free = plan_of(case, None, "auto", options)
    made = make_templates(TEMPLATES, case.step, case.args, case.mesh)
    others = {name: one for name, one in made.items() if isinstance(one, Plan)}
    if "fsdp" in others:
        others[CHECKPOINTED] = checkpointed(others["fsdp"])
    for share in shares:
        if share == JUST:
            limit = others[CHECKPOINTED].memory_bytes()
        else:
            limit = int(float(share) * free.memory_bytes())
        plans, why = dict[str, Plan](), {n: w for n, w in made.items() if isinstance(w, str)}
        for name, recompute in OURS.items():
            try:
                plans[name] = plan_of(case, limit, recompute, options)
            except CfpError as error:
                why[name] = str(error)
        ours = plans.get("cfp")
        for name, plan in others.items():
            if plan.memory_bytes() <= limit:
                plans[name] = plan
            else:
                why[name] = f"needs {bytes_text(plan.memory_bytes())}"
        ran = measure(case, plans, options.rounds)
        yield Row(
            model,
            limit / free.memory_bytes(),
            limit,
            {one.name: (one.time_s, one.memory_bytes) for one in ran.values()},
            verdicts(ran),
            why,
            None if ours is None or ours.predicted is None else ours.predicted.memory_bytes,
            "" if ours is None else splits_of(ours),
            share,
            mesh,
        )


def plan_of(case: Case, limit: int | None, recompute: str, options: argparse.Namespace) -> Plan:
    with TerminalProgress(Console(stderr=True)) as progress:
        return cfp.plan(
            case.step,
            *case.args,
            mesh=case.mesh,
            memory_limit=limit,
            recompute=recompute,
            cache_dir=options.store,
            effort=replace(USUAL, wave=options.wave),
            progress=progress,
        )


def measure(case: Case, plans: Mapping[str, Plan], rounds: int) -> dict[str, ComparedPlan]:
    """Returns the plans that ran, by name."""
    if not plans:
        return {}
    found = cfp.compare(case.step, *case.args, mesh=case.mesh, plans=plans, rounds=rounds)
    return {one.name: one for one in found.plans if one.failed is None}


def verdicts(ran: Mapping[str, ComparedPlan]) -> dict[str, str]:
    """Returns what the rounds show of every other plan beside CFP's."""
    ours = ran.get("cfp")
    if ours is None:
        return {}
    others = {name: one for name, one in ran.items() if name not in OURS}
    return {name: judge(one.runs_s, ours.runs_s).verdict for name, one in others.items()}


def render(rows: list[Row], batch: int) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    lines = [
        "# Under a memory limit",
        "",
        made_by("bench.memory_limit"),
        "",
        f"Models of size `small`, batch {batch}, {sizes}, 4 virtual CPU devices, in a row unless "
        "the model says 2x2. Milliseconds of a full step, run in turn; in brackets MiB by the "
        "compiler; `-` where a plan does not fit. Limits are per device; shares are of what CFP's "
        "plan without a limit needs. A plan beside CFP's is slower unless its cell says what the "
        "rounds show.",
        "",
        "| model | limit MiB (share) | " + " | ".join(NAMES) + " | predicted MiB (error) |",
        "|---|---|" + "---|" * (len(NAMES) + 1),
    ]
    errors = []
    for row in rows:
        cells = [_cell(row.steps.get(name), row.verdicts.get(name)) for name in NAMES]
        off = ""
        if row.predicted_bytes is not None and "cfp" in row.steps:
            error = row.predicted_bytes / row.steps["cfp"][1] - 1
            errors.append(abs(error))
            off = f"{row.predicted_bytes / 2**20:.1f} ({error:+.1%})"
        limit = f"{row.limit_bytes / 2**20:.1f} ({row.share:.2g})"
        lines.append(f"| {_name(row)} | {limit} | {' | '.join(cells)} | {off} |")
    if errors:
        median, worst = statistics.median(errors), max(errors)
        lines += [
            "",
            f"Memory, predicted against compiled: median error {median:.1%}, worst {worst:.1%}.",
        ]
    lines += ["", *_gains(rows), "", "CFP's plans:", ""]
    lines += [f"- {_name(row)} at {row.share:.2g}: {row.splits or row.why['cfp']}" for row in rows]
    return "\n".join(lines) + "\n"


def _gains(rows: list[Row]) -> list[str]:
    """Says how CFP compares with the checkpointed FSDP where that one just fits, and with all that
    fits there."""
    found = []
    for name in dict.fromkeys(map(_name, rows)):
        fit = [r for r in rows if _name(r) == name and {"cfp", CHECKPOINTED} <= r.steps.keys()]
        if fit:
            row = min(fit, key=lambda one: one.limit_bytes)
            ratio = row.steps[CHECKPOINTED][0] / row.steps["cfp"][0]
            found.append(
                f"- {name}: at the smallest limit at which {CHECKPOINTED} fits ({row.share:.2g}), "
                f"it takes {ratio:.2f} times as long as CFP's plan."
            )
    return found


def _name(row: Row) -> str:
    """Returns the model, with the mesh where that has several axes."""
    return row.model if len(row.mesh) == 1 else f"{row.model} {'x'.join(map(str, row.mesh))}"


def _cell(step: tuple[float, int] | None, verdict: str | None) -> str:
    if step is None:
        return "-"
    said = "" if verdict in (None, Verdict.SLOWER) else f", {verdict}"
    return f"{step[0] * 1e3:.1f} ({step[1] / 2**20:.1f}){said}"


if __name__ == "__main__":
    main()
