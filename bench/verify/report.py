"""The sweep as a table."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import jax

from bench.verify.case import Result


def table(results: Sequence[Result], command: str) -> str:
    """Returns Markdown: a row per step, totals, what was refused, what failed."""
    steps = list(dict.fromkeys(result.case.step for result in results))
    failures = [result for result in results if result.status == "failed"]
    refusals = [result for result in results if result.status == "refused"]
    round_trips = [result for result in results if result.round_trip is not None]
    hours = sum(result.time_s for result in results) / 3600
    lines = [
        "# Plans verified",
        "",
        f"`{command}`, {hours:.1f} core hours; jax {jax.__version__}, "
        f"python {platform.python_version()}, 8 virtual CPU devices, {platform.machine()}.",
        "",
        "Each plan runs one step on its mesh; every output is compared with the unsharded step's.",
        "The ratio is the largest difference as a share of what rounding explains (`cfp.verify`):",
        "above 1 a plan fails. Random plans take a random strategy in every block; every other one",
        "is made as the planner makes them, of a random option of every segment.",
        "",
        "| step | templates ok | refused | failed | random ok | failed | worst ratio | at |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
        *(_row(step, [r for r in results if r.case.step == step]) for step in steps),
        _row("**all**", results),
        "",
        f"{len(round_trips)} of the plans were also saved, loaded and bound again: "
        f"{sum(r.round_trip is True for r in round_trips)} came back with the same layouts.",
        "",
        f"Refused: {len(refusals) or 'none'}.",
        "",
        *(f"- `{result.case}`: {result.message}" for result in refusals),
        *([""] if refusals else []),
        f"Failed: {len(failures) or 'none'}.",
        "",
        *(f"- `{result.case}` (seed {result.case.seed}): {result.message}" for result in failures),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, results: Sequence[Result]) -> str:
    def count(is_random: bool, status: str) -> str:
        asked = [r for r in results if r.case.is_random is is_random]
        return str(sum(r.status == status for r in asked)) if asked else "-"

    worst = max(results, key=lambda r: r.ratio or 0.0)
    at = f"`{worst.case}` `{worst.output}`" if worst.ratio is not None else "-"
    ratio = f"{worst.ratio:.2g}" if worst.ratio is not None else "-"
    cells = [
        name,
        *(count(False, status) for status in ("ok", "refused", "failed")),
        *(count(True, status) for status in ("ok", "failed")),
        ratio,
        at,
    ]
    return "| " + " | ".join(cells) + " |"
