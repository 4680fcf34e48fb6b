"""From one strategy per block to a layout for every tensor of the step (paper, section 3.3).

    asked    what the strategies ask for outright                        `asked.ask`
    wants    what readers want, from the end to the start                `want.Wants`
    known    what follows from asked values and arguments, start to end  `flow.Flow`
    decided  the same with nothing left open, and the constraints        `decide.Decision`

First the wants settle how the parameters of contractions lie; with these known, the other
parameters and the data, first what somebody wants, then what only meets it (a cotangent that is
added to another); then what the update alone reads: optimizer state meets its parameter there
and lies likewise. A last pass from start to end gives every tensor its layout and notes what the
compiler must be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cfp.blocks import Blocks, Strategy
from cfp.layouts.asked import ask
from cfp.layouts.carry import OPEN, Carry, PartialLayout
from cfp.layouts.decide import Decision
from cfp.layouts.flow import Flow
from cfp.layouts.layout import Entries, Layout, Layouts, halfway
from cfp.layouts.want import Want, Wants
from cfp.trace import Graph, Role


def propagate(
    graph: Graph,
    blocks: Blocks,
    strategies: Sequence[Strategy],
    mesh_shape: tuple[int, ...],
    *,
    held: Mapping[int, Layout] | None = None,
    pairs: Mapping[int, int] | None = None,
    wanted: Mapping[int, Layout] | None = None,
    entries: Entries | None = None,
) -> Layouts:
    """The layouts of a plan.

    `held` fixes arguments (positions in `graph.inputs`), whatever the blocks want of them.
    `pairs` names results (positions in `graph.outputs`) that are the next step's arguments and lie
    as those do. `wanted` says how other results lie. `entries` says how operands, (equation,
    number) each, are to be read, where a part of the step shall lie as if it were alone.
    """
    entering = entries or {}
    carry = Carry(mesh_shape)
    asked = ask(graph, blocks, strategies, carry)
    wants = Wants(graph, asked, carry, blocks.parameters, entering)
    settled: dict[int, PartialLayout] = {
        graph.inputs[position]: layout for position, layout in (held or {}).items()
    }

    def settle(values: Iterable[int]) -> None:
        for value in values:
            if value not in settled:
                dims = carry.settle(wants.want[value].dims)
                settled[value] = carry.fit(dims, graph.values[value].shape)

    def sweep(known: Mapping[int, PartialLayout]) -> None:
        results = _of_results(graph, settled, pairs or {})
        for position, layout in (wanted or {}).items():
            results[graph.outputs[position]] = _result(layout)
        wants.sweep(known, results)

    def known() -> dict[int, PartialLayout]:
        return Flow(graph, blocks, asked, wants, dict(settled), entering).known()

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

    decision = Decision(graph, blocks, asked, wants, dict(settled), entering)
    decision.run()
    if decision.meets_otherwise:
        decision = Decision(graph, blocks, asked, wants, dict(settled), entering, thorough=True)
        decision.run()
    inputs = tuple(carry.settle(settled[value]) for value in graph.inputs)
    fixed = {**(wanted or {}), **{o: inputs[i] for o, i in (pairs or {}).items()}}
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
    once = _read_once(graph, entering, decision.uses, lies)
    return Layouts(inputs, outputs, decision.values, decision.uses, decision.sums, via, once, lies)


def _read_once(
    graph: Graph,
    entries: Entries,
    uses: Mapping[tuple[int, int], Layout],
    lies: Mapping[int, Layout],
) -> dict[tuple[int, int], int]:
    """A number for the entries that one tensor is read by, several times in the same way."""
    alike: dict[tuple[int, Layout], list[tuple[int, int]]] = {}
    for equation, operand in sorted(entries.keys() & uses.keys()):
        value, layout = graph.equations[equation].inputs[operand], uses[equation, operand]
        if lies[value] != layout:
            alike.setdefault((value, layout), []).append((equation, operand))
    several = [places for places in alike.values() if len(places) > 1]
    return {place: number for number, places in enumerate(several) for place in places}


def _of_results(
    graph: Graph, settled: Mapping[int, PartialLayout], pairs: Mapping[int, int]
) -> dict[int, Want]:
    """A result that is the next step's argument is wanted as that lies."""
    wanted: dict[int, Want] = {}
    for position, argument in pairs.items():
        layout = settled.get(graph.inputs[argument])
        if layout is not None:
            wanted[graph.outputs[position]] = _result(layout)
    return wanted


def _result(layout: PartialLayout) -> Want:
    return Want(layout, (0.0,) * len(layout), (True,) * len(layout))
