"""From one strategy per block to a layout for every tensor of the step (paper, section 3.3).

    asked    what the strategies ask for outright                        `lay_blocks`
    wants    what readers want, from the end to the start                `Wants`
    known    what follows from asked values and arguments, start to end  `ForwardSweep`
    decided  the same with nothing left open, and the constraints        `Decision`

First the wants settle how the parameters of contractions lie; with these known, the other
parameters and the data, first what somebody wants, then what only meets it (a cotangent that is
added to another); then what the update alone reads: optimizer state meets its parameter there
and lies likewise. A last pass from start to end gives every tensor its layout and notes what the
compiler must be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cfp.blocks import Blocks, Strategy
from cfp.layouts.backward_sweep import Want, Wants
from cfp.layouts.block_layouts import lay_blocks
from cfp.layouts.carry import OPEN, Carry, PartialLayout
from cfp.layouts.decide import Decision
from cfp.layouts.forward_sweep import ForwardSweep
from cfp.layouts.layout import Layout, Layouts, halfway
from cfp.trace import Graph, Role


def propagate(
    graph: Graph,
    blocks: Blocks,
    strategies: Sequence[Strategy],
    mesh_shape: tuple[int, ...],
    *,
    held: Mapping[int, Layout] | None = None,
    feedback: Mapping[int, int] | None = None,
    wanted: Mapping[int, Layout] | None = None,
) -> Layouts:
    """Returns the layouts of a plan.

    `held` fixes arguments (positions in `graph.inputs`), whatever the blocks want of them.
    `feedback` maps results (positions in `graph.outputs`) to the arguments they replace in the next
    step, whose layout they have. `wanted` has the layouts of other results.
    """
    carry = Carry(mesh_shape)
    asked = lay_blocks(graph, blocks, strategies, carry)
    wants = Wants(graph, asked, carry, blocks.parameters)
    settled: dict[int, PartialLayout] = {
        graph.inputs[position]: layout for position, layout in (held or {}).items()
    }

    def settle(values: Iterable[int]) -> None:
        for value in values:
            if value not in settled:
                dims = carry.settle(wants.want[value].dims)
                settled[value] = carry.fit(dims, graph.values[value].shape)

    def sweep(known: Mapping[int, PartialLayout]) -> None:
        results = _of_results(graph, settled, feedback or {})
        for position, layout in (wanted or {}).items():
            results[graph.outputs[position]] = _result(layout)
        wants.sweep(known, results)

    def known() -> dict[int, PartialLayout]:
        return ForwardSweep(graph, blocks, asked, wants, dict(settled)).known()

    def is_wanted(value: int) -> bool:
        return OPEN not in wants.want[value].dims

    computing = [
        value
        for value in graph.inputs
        if any(graph.equations[r].role is not Role.UPDATE for r in graph.readers[value])
    ]
    sweep({**asked.values, **settled})
    settle(filter(is_wanted, (v for v in graph.inputs if v in blocks.parameters)))
    sweep(known())
    settle(filter(is_wanted, computing))
    sweep(known())
    settle(computing)
    sweep(known())
    settle(graph.inputs)

    decision = Decision(graph, blocks, asked, wants, dict(settled))
    decision.run()
    inputs = tuple(carry.settle(settled[value]) for value in graph.inputs)
    fixed = {**(wanted or {}), **{o: inputs[i] for o, i in (feedback or {}).items()}}
    outputs = tuple(
        fixed[position] if position in fixed else carry.settle(decision.layout_of(value))
        for position, value in enumerate(graph.outputs)
    )
    lies = {value: carry.settle(layout) for value, layout in decision.layouts.items()}
    via = {
        (equation, operand): between
        for (equation, operand), layout in decision.uses.items()
        if (source := lies.get(graph.equations[equation].inputs[operand])) is not None
        if (between := halfway(source, layout)) is not None
    }
    return Layouts(inputs, outputs, decision.values, decision.uses, decision.sums, via, known=lies)


def _of_results(
    graph: Graph, settled: Mapping[int, PartialLayout], feedback: Mapping[int, int]
) -> dict[int, Want]:
    """Returns what is wanted of results: one that is the next step's argument is wanted in that
    argument's layout."""
    wanted: dict[int, Want] = {}
    for position, argument in feedback.items():
        layout = settled.get(graph.inputs[argument])
        if layout is not None:
            wanted[graph.outputs[position]] = _result(layout)
    return wanted


def _result(layout: PartialLayout) -> Want:
    return Want(layout, (0.0,) * len(layout), (True,) * len(layout))
