"""The verifier of layouts: `check_layouts` raises where a plan's layouts contradict themselves.

It is run in tests and reads the graph and the result alone.

- Every layout fits its tensor: sizes divide.
- A contraction finds its operands split alike: what one axis splits is one factor in all of them.
  So it runs without talking, but for the sum it may leave.
- Its result is split where its operands are, if it keeps that dim.
- Partial sums that are completed before they go on split are whole along the axes they go on
  split by.
- Results that are the next step's arguments lie as those.
"""

from __future__ import annotations

from collections.abc import Mapping

from cfp.blocks import Blocks
from cfp.layouts.layout import Layouts, fits
from cfp.trace import Equation, Graph


def check_layouts(
    graph: Graph, blocks: Blocks, layouts: Layouts, feedback: Mapping[int, int] | None = None
) -> None:
    """Raises ValueError, naming the tensor, unless every invariant holds."""
    tensors = [
        *zip(graph.inputs, layouts.inputs, strict=True),
        *zip(graph.outputs, layouts.outputs, strict=True),
        *layouts.values.items(),
        *layouts.sums.items(),
        *((graph.equations[e].inputs[i], layout) for (e, i), layout in layouts.uses.items()),
    ]
    for value, layout in tensors:
        if not fits(layout, graph.values[value].shape, blocks.mesh_shape):
            raise ValueError(f"{graph.describe(value)} does not divide into {layout}.")
    for value, summed in layouts.sums.items():
        pairs = zip(summed, layouts.values[value], strict=True)
        if any(before is not None and before != after for before, after in pairs):
            raise ValueError(f"{graph.describe(value)} is summed as {summed}, which it leaves.")
    seeds = {seed for block in blocks.blocks for seed in block.seeds}
    for equation in graph.equations:
        if equation.index in seeds or equation.index in blocks.matched:
            _check_contraction(graph, layouts, equation)
    for result, argument in (feedback or {}).items():
        if layouts.outputs[result] != layouts.inputs[argument]:
            raise ValueError(f"{graph.output_paths[result]} lies otherwise than its argument.")


def _check_contraction(graph: Graph, layouts: Layouts, equation: Equation) -> None:
    mapping = equation.op.map
    assert mapping is not None
    where = graph.describe(equation.outputs[0])
    result = layouts.values.get(equation.outputs[0])
    split: dict[int, set[int]] = {}  # axis -> the leading factors it splits
    for i in range(len(equation.inputs)):
        for axis, dim in enumerate(layouts.uses.get((equation.index, i), ())):
            if dim is not None:
                split.setdefault(axis, set()).add(mapping.operands[i][dim][0])
    for axis, factors in split.items():
        if len(factors) > 1:
            raise ValueError(f"Axis {axis} splits the operands of {where} differently.")
        (factor,) = factors
        kept = [d for d, dim in enumerate(mapping.results[0]) if dim and dim[0] == factor]
        if kept and result is not None and result[axis] != kept[0]:
            raise ValueError(f"Axis {axis} splits the operands of {where}, and not its result.")
        if not kept and equation.primitive == "dot_general" and factor not in mapping.reduced:
            raise ValueError(f"Axis {axis} splits what {where} neither keeps nor sums.")
