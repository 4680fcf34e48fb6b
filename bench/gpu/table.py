"""The page of `results/gpu.md`, from the files of the cases that were run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfp.planning.audit import NO_TIME

Row = Mapping[str, Any]
WITHIN = 0.05  # what predictions and replays should agree to
MOST_S = 600.0  # seconds that planning one case may take


def read(folder: Path) -> list[Row]:
    """Returns what came of the cases, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def page(rows: Sequence[Row], command: str) -> str:
    """Returns the page in Markdown: the cases, the templates beside them, and how replays agree."""
    names = sorted({name for row in rows for name in row["ratios"]})
    devices = ", ".join(sorted({row["device"] for row in rows}))
    return "\n".join(
        [
            "# Plans from one GPU for a mesh that is not there",
            "",
            f"`{command}` on one {devices}; {rows[0]['environment']}. Kernels are measured,",
            "communication is replayed with links.",
            "",
            *_table(
                (
                    "case",
                    "planned in",
                    "programs (stored)",
                    "predicted",
                    "replayed",
                    "off",
                    "exposed",
                    "MFU",
                    "memory (predicted)",
                ),
                map(_case, rows),
            ),
            "",
            f"Planned within {MOST_S:.0f} s: {sum(row['seconds'] <= MOST_S for row in rows)} of "
            f"{len(rows)}. Predicted within {WITHIN:.0%} of the replayed step: "
            f"{sum(_off(row) is not None and abs(_off(row) or 0.0) <= WITHIN for row in rows)} of "
            f"{len(rows)}.",
            "",
            "## The chosen plans",
            "",
            *(f"- {row['case']}: {row['splits']}" for row in rows if "splits" in row),
            "",
            "## Templates beside the chosen plan (times of its step)",
            "",
            *_table(("case", *names), ([row["case"], *_ratios(row, names)] for row in rows)),
            "",
            "## The replay with free collectives against the measured run",
            "",
            *_table(("case", "full steps", "median", "worst"), map(_free, rows)),
            "",
        ]
    )


def _case(row: Row) -> list[str]:
    off = _off(row)
    return [
        row["case"],
        f"{row['seconds']:.0f} s",
        f"{row['programs']} ({row['loaded']})",
        _ms(row["predicted_s"]),
        _ms(row["replayed_s"]),
        "-" if off is None else f"{off:+.1%}",
        _ms(row["exposed_s"]),
        "-" if row["mfu"] is None else f"{row['mfu']:.1%}",
        f"{row['memory_bytes'] / 2**30:.1f} ({row['predicted_bytes'] / 2**30:.1f}) GiB",
    ]


def _off(row: Row) -> float | None:
    replayed_s = row["replayed_s"]
    return None if replayed_s is None else row["predicted_s"] / replayed_s - 1


def _ratios(row: Row, names: Sequence[str]) -> list[str]:
    found = [row["ratios"].get(name) for name in names]
    return [f"{one:.2f}" if isinstance(one, float) else _brief(one or "-") for one in found]


def _brief(why_not: str) -> str:
    """Returns why a step did not run, without what an allocator says of it."""
    return "no time" if NO_TIME in why_not else ": ".join(why_not.split(": ")[:2])


def _free(row: Row) -> list[str]:
    off = [abs(free_s / ran_s - 1) for ran_s, free_s in row["free"].values()]
    if not off:
        return [row["case"], "0", "-", "-"]
    return [row["case"], str(len(off)), f"{statistics.median(off):.1%}", f"{max(off):.1%}"]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _table(head: Sequence[str], rows: Any) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
