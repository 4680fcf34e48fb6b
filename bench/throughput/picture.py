"""The plot: steps per second of each framework, a panel for each cluster and mesh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.clustered import NAMES, Planned
from bench.throughput.rows import by_panel


def draw(rows: Sequence[Planned], path: Path) -> None:
    """Draws steps per second over the fastest's, a panel for each cluster and mesh."""
    panels = by_panel(rows)
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(11, 2.6 * len(panels)), squeeze=False, layout="constrained"
    )
    for axis, (panel, some) in zip(axes[:, 0], panels.items(), strict=True):
        for i, name in enumerate(NAMES):
            heights = []
            for row in some:
                step = row.steps.get(name)
                ran = step is not None and step.failed is None
                best_s = row.steps[row.best].time_s
                heights.append(best_s / step.time_s if step is not None and ran else 0.0)
            at = [x + (i - len(NAMES) / 2) * 0.13 for x in range(len(some))]
            axis.bar(at, heights, width=0.12, label=name)
        axis.set_xticks(range(len(some)), [f"{r.cell.model}\n{r.cell.batch}" for r in some])
        axis.axhline(1.0, color="grey", linewidth=0.6)
        axis.set_title(f"{panel[0]}, mesh {panel[1]}", fontsize=10)
        axis.set_ylabel("steps/s to\nthe fastest's", fontsize=8)
    named = axes[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside upper center", ncols=len(NAMES), fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
