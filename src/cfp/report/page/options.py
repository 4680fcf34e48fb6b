"""Every measured option of every kind as plain data, which the page's script draws and filters."""

from __future__ import annotations

from typing import Any

from cfp.plan import Plan
from cfp.plan.choice import segments_text
from cfp.plan.measured_kinds import MeasuredKind
from cfp.report.page.strip import seed_name


def options_data(plan: Plan) -> list[dict[str, Any]]:
    """Returns the kinds: `blocks` with their strategies, and `options`, of which those in `chosen`
    are the plan's. Times are in ms, memory is in bytes; `compute` is None where not measured."""
    evidence = plan.evidence
    if evidence is None:
        return []
    found = []
    for kind in evidence.kinds:
        chosen = {evidence.segments[at].splits for at in kind.segments}
        found.append({**_kind(kind), "chosen": sorted(chosen)})
    return found


def _kind(kind: MeasuredKind) -> dict[str, Any]:
    where = segments_text(kind.segments)
    several = "s" if len(kind.segments) > 1 else ""
    return {
        "name": f"segment{several} {where}: {kind.name}",
        "times": kind.times,
        "ways": kind.ways,
        "space": kind.space,
        "finished": kind.finished,
        "left_out": kind.left_out,
        "blocks": [
            {
                "name": f"block {i}: {seed_name(block.seeds[0])}",
                "strategies": list(block.strategies),
            }
            for i, block in enumerate(kind.blocks)
        ],
        "options": [
            {
                "splits": one.splits,
                "combo": list(one.combo),
                "state": one.state,
                "keep": one.keep,
                "time": one.time_s * 1e3,
                "spread": one.spread_s * 1e3,
                "compute": None if one.compute_s is None else one.compute_s * 1e3,
                "communicate": None if one.communication_s is None else one.communication_s * 1e3,
                "memory": one.memory_bytes,
                "rough": one.rough,
            }
            for one in kind.options
        ],
    }
