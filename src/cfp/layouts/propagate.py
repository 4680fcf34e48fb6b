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
from dataclasses import dataclass

from cfp.blocks import Blocks, Strategy
from cfp.layouts.backward_sweep import Want, Wants
from cfp.layouts.block_layouts import BlockLayouts, lay_blocks
from cfp.layouts.carry import OPEN, Carry, PartialLayout
from cfp.layouts.decide import Decision
from cfp.layouts.forward_sweep import ForwardSweep
from cfp.layouts.layout import Layout, Layouts, halfway, made_otherwise
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
    arguments = _Arguments(
        graph,
        blocks,
        asked,
        Wants(graph, asked, carry, blocks.parameters),
        {graph.inputs[position]: layout for position, layout in (held or {}).items()},
        feedback or {},
        wanted or {},
    )
    settled = arguments.settle_all()
    decision = Decision(graph, blocks, asked, arguments.wants, dict(settled))
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
    values = {**made_otherwise(graph, outputs, lies), **decision.values}
    return Layouts(inputs, outputs, values, decision.uses, decision.sums, via, known=lies)


@dataclass(slots=True)
class _Arguments:
    """The arguments of the step while their layouts are settled, by turns of sweeps (`wants`,
    `ForwardSweep`). `feedback` and `wanted` are those of `propagate`."""

    graph: Graph
    blocks: Blocks
    asked: BlockLayouts
    wants: Wants
    settled: dict[int, PartialLayout]
    feedback: Mapping[int, int]
    wanted: Mapping[int, Layout]

    def settle_all(self) -> Mapping[int, PartialLayout]:
        """Settles every argument, in the order that the module's docstring states."""
        inputs = self.graph.inputs
        computing = [value for value in inputs if self._computes(value)]
        parameters = [value for value in inputs if value in self.blocks.parameters]
        self._sweep({**self.asked.values, **self.settled})
        self._settle(filter(self._is_wanted, parameters))
        self._sweep(self._known())
        self._settle(filter(self._is_wanted, computing))
        self._sweep(self._known())
        self._settle(computing)
        self._sweep(self._known())
        self._settle(inputs)
        return self.settled

    def _computes(self, value: int) -> bool:
        """Returns whether more than the update reads an argument."""
        readers = (self.graph.equations[r] for r in self.graph.readers[value])
        return any(reader.role is not Role.UPDATE for reader in readers)

    def _is_wanted(self, value: int) -> bool:
        return OPEN not in self.wants.want[value].dims

    def _settle(self, values: Iterable[int]) -> None:
        carry = self.wants.carry
        for value in values:
            if value not in self.settled:
                dims = carry.settle(self.wants.want[value].dims)
                self.settled[value] = carry.fit(dims, self.graph.values[value].shape)

    def _sweep(self, known: Mapping[int, PartialLayout]) -> None:
        results = _of_results(self.graph, self.settled, self.feedback)
        for position, layout in self.wanted.items():
            results[self.graph.outputs[position]] = _result(layout)
        self.wants.sweep(known, results)

    def _known(self) -> dict[int, PartialLayout]:
        sweep = ForwardSweep(self.graph, self.blocks, self.asked, self.wants, dict(self.settled))
        return sweep.known()


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
