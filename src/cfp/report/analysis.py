"""The tables of `cfp analyze`."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfp.analysis import Analysis
from cfp.blocks import REPLICATED, Block, legend
from cfp.report.text import line
from cfp.segments import DistinctSegment
from cfp.trace import Graph, source_line


def show_analysis(analysis: Analysis, console: Console) -> None:
    """Prints the distinct segments with their search spaces, then their blocks."""
    shape = "x".join(map(str, analysis.mesh_shape))
    happening = sum(len(segment.blocks) * segment.times for segment in analysis.segments)
    console.print(
        f"{len(analysis.graph.equations)} equations, {happening} ParallelBlocks, "
        f"{sum(segment.times for segment in analysis.segments)} segments, "
        f"{len(analysis.distinct_segments)} distinct; mesh {shape}; "
        f"{analysis.seconds:.2f} s of which JAX traced {analysis.trace_s:.2f} s"
    )
    console.print(_kinds_table(analysis))
    console.print(_blocks_table(analysis))
    shown = [analysis.segments[kind.representative] for kind in analysis.distinct_segments]
    words = [
        candidates_text(analysis.blocks[block], analysis.mesh_shape)
        for segment in shown
        for block in segment.blocks
    ]
    console.print(line(legend(words)))
    for note in analysis.notes:
        console.print(line(note))
    opaque = Counter(equation.primitive for equation in analysis.graph.opaque())
    if opaque:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(opaque.items()))
        console.print(f"Opaque: {listed}. Blocks end there; XLA propagates through.")


def _kinds_table(analysis: Analysis) -> Table:
    table = Table(title="Distinct segments", title_justify="left")
    for column in ("segment", "times", "blocks", "plans to profile", "fingerprint"):
        table.add_column(column, justify="right" if column in ("times", "blocks") else "left")
    for kind in analysis.distinct_segments:
        table.add_row(
            str(kind.index),
            str(kind.times),
            str(len(kind.strategies)),
            space_text(kind),
            kind.fingerprint,
        )
    return table


def space_text(kind: DistinctSegment) -> str:
    """Returns the size of a search space as the paper writes it: `3^4 = 81`."""
    runs = sorted(Counter(kind.strategies).items())
    product = " · ".join(f"{base}^{power}" if power > 1 else str(base) for base, power in runs)
    return f"{product} = {kind.space}" if len(kind.strategies) > 1 else str(kind.space)


def _blocks_table(analysis: Analysis) -> Table:
    table = Table(title="Their blocks", title_justify="left")
    for column in ("segment", "block", "starts with", "may split", "ends because"):
        table.add_column(column, overflow="fold")
    for kind in analysis.distinct_segments:
        for place, index in enumerate(analysis.segments[kind.representative].blocks):
            block = analysis.blocks[index]
            table.add_row(
                str(kind.index) if place == 0 else "",
                str(place),
                escape(seeds_text(block, analysis.graph)),
                candidates_text(block, analysis.mesh_shape),
                "; ".join(block.ended_by) or "nothing follows",
            )
    return table


def seeds_text(block: Block, graph: Graph) -> str:
    """Returns what each seed multiplies: arguments by their path, all else by shape and source
    line."""
    lines = []
    for seed in block.seeds:
        equation = graph.equations[seed]
        operands = []
        for value in equation.inputs:
            shape = "[" + ",".join(map(str, graph.values[value].shape)) + "]"
            operands.append(f"{graph.argument(value) or ''}{shape}")
        verb = "lookup" if equation.primitive == "gather" else equation.primitive
        lines.append(f"{verb} {' x '.join(operands)}  {source_line(equation)}")
    return "\n".join(lines)


def candidates_text(block: Block, mesh_shape: tuple[int, ...]) -> str:
    """Returns the candidates' names with their extents; those that no axis divides are in
    parentheses."""
    words = []
    for candidate in block.candidates:
        fits = any(candidate.allows(size) for size in mesh_shape)
        text = f"{candidate.name} {candidate.extent}"
        words.append(text if fits else f"({text})")
    if block.cheap:
        words.append(REPLICATED)
    return ", ".join(words)
