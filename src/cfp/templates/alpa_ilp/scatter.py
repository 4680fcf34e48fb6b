"""`prefer_reduce_scatter`: gradients scattered instead of all-reduced (GenerateReduceScatter).

After the solver has decided. A gradient that is all-reduced and an optimizer state held whole
along the same axis meet in elementwise operations only; so the gradient may as well be
reduce-scattered, the state held in parts, and only the new parameter gathered. From the result of
the all-reduce this walks over every value of the same size that elementwise operations and
transposes connect with it, up to the values that something else reads (a boundary). The rewriting
takes place where at least one argument inside can be split, and where all boundaries are one
argument and its new value. The objective stays the solver's, as in Alpa.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cfp.layouts import Layout, Layouts, fits, transfer
from cfp.templates.alpa_ilp.cost import ALL_GATHER, REDUCE_SCATTER
from cfp.templates.alpa_ilp.ledger import AlpaLedger
from cfp.templates.alpa_ilp.problem import Sum
from cfp.templates.alpa_ilp.solution import AlpaSolution, Communication
from cfp.trace import Equation

_FEWEST = 5  # values inside, as Alpa requires


def scatter_gradients(
    solution: AlpaSolution, ledger: AlpaLedger, ways: Sequence[int], feedback: Mapping[int, int]
) -> AlpaSolution:
    """Returns the solution with gradients scattered wherever that moves no more than before."""
    graph = ledger.graph
    fed_back = {graph.outputs[out]: graph.inputs[argument] for out, argument in feedback.items()}
    split: dict[int, Layout] = {}
    scattered: dict[int, Communication] = {}
    for term in ledger.problem.sums:
        if not term.axes[ways[term.node]] or term.value in split:
            continue
        walk = _GradientWalk(ledger, ways, fed_back, term)
        if walk.target is None or not walk.applies() or split.keys() & walk.inside.keys():
            continue
        split.update(walk.inside)
        gathered = walk.gathered()
        if gathered is not None:
            scattered[term.value] = gathered
    return _rewritten(solution, ledger, split, scattered, feedback)


@dataclass(slots=True)
class _GradientWalk:
    """Values inside, each with the layout it would have, and those at the boundary."""

    ledger: AlpaLedger
    ways: Sequence[int]
    fed_back: Mapping[int, int]
    term: Sum
    target: Layout | None = None
    inside: dict[int, Layout] = field(default_factory=dict)
    boundary: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.target = self._target()
        waiting = [(self.term.value, self.target)] if self.target is not None else []
        while waiting:
            value, layout = waiting.pop()
            if value in self.inside or value in self.boundary:
                continue
            if self._read_whole(value):
                self.boundary.add(value)
            else:
                self.inside[value] = layout
                waiting += self._neighbours(value, layout)

    def applies(self) -> bool:
        arguments = [value for value in self.inside if self._is_argument(value)]
        ends = {self.fed_back.get(value, value) for value in self.boundary}
        one = len(ends) <= 1 and ends.issubset(self.fed_back.values())
        return bool(arguments) and one and len(self.inside) >= _FEWEST

    def gathered(self) -> Communication | None:
        """Returns the all-gather of the new parameter, along the axis of the all-reduce."""
        for value in self.boundary & self.fed_back.keys():
            cluster = self.ledger.cluster
            axis = self.term.axes[self.ways[self.term.node]][0]
            tiles = cluster.tiles(self._layout(value))
            size_bytes = self.ledger.graph.values[value].size_bytes / tiles
            return Communication(ALL_GATHER, axis, size_bytes, value, None, 0, self.term.times)
        return None

    def _layout(self, value: int) -> Layout:
        return self.ledger.layouts[value][self.ways[self.ledger.node[value]]]

    def _target(self) -> Layout | None:
        """Returns the layout in which the first dim that divides takes the axis of the sum."""
        shape = self.ledger.graph.values[self.term.value].shape
        layout = self._layout(self.term.value)
        for axis in self.term.axes[self.ways[self.term.node]]:
            cut = [(*layout[:axis], dim, *layout[axis + 1 :]) for dim in range(len(shape))]
            cut = [other for other in cut if fits(other, shape, self.ledger.cluster.shape)]
            cut.sort(key=lambda other: len({d for d in other if d is not None}), reverse=True)
            if not cut:
                return None
            layout = cut[0]
        return layout

    def _is_argument(self, value: int) -> bool:
        return self.ledger.graph.values[value].producer is None

    def _readers(self, value: int) -> list[Equation]:
        """Returns the equations that read a value, or the argument that it replaces in the next
        step."""
        graph = self.ledger.graph
        both = (value, self.fed_back.get(value, value))
        found = {e for v in both for e in graph.readers[v]}
        equations = [graph.equations[e] for e in sorted(found)]
        return [e for e in equations if e.outputs[0] in self.ledger.layouts]  # the live ones

    def _read_whole(self, value: int) -> bool:
        """Returns whether something reads a value that elementwise operations do not connect."""
        returned = value in self.ledger.graph.returned and value not in self.fed_back
        return returned or any(
            not self._connects(e) and not e.primitive.startswith("reduce_")
            for e in self._readers(value)
        )

    def _connects(self, equation: Equation) -> bool:
        """Returns whether an operation is elementwise or a transpose: its operands that are no
        scalars have the result's shape.

        Dims of extent 1 do not count, as JAX adds and sums away such. A broadcast does not
        connect: the argument it reads is wanted whole.
        """
        mapping, primitive = equation.op.map, equation.primitive
        if mapping is None or mapping.reduced or not mapping.exact or len(equation.outputs) > 1:
            return False
        shapes = {tuple(n for n in shape if n > 1) for shape in equation.op.in_shapes if shape}
        same = shapes == {tuple(n for n in equation.op.out_shapes[0] if n > 1)}
        return primitive == "transpose" or (same and primitive != "broadcast_in_dim")

    def _neighbours(self, value: int, layout: Layout) -> list[tuple[int, Layout]]:
        graph = self.ledger.graph
        found: list[tuple[int, Layout]] = []
        producer = graph.values[value].producer
        around = [e for e in self._readers(value) if self._connects(e)]
        if producer is not None and self._connects(graph.equations[producer]):
            around.append(graph.equations[producer])
        for equation in around:
            mapping = equation.op.map
            assert mapping is not None
            tensors = [
                *zip(equation.inputs, mapping.operands, strict=True),
                *zip(equation.outputs, mapping.results, strict=True),
            ]
            here = next((dims for other, dims in tensors if other == value), None)
            if here is None:
                continue  # reached through the argument that the value replaces
            for other, dims in tensors:
                if other == value or not graph.values[other].shape or other in graph.constants:
                    continue
                there = transfer(mapping.sizes, here, dims, layout, self.ledger.cluster.shape)
                if there.count(None) == layout.count(None) and other in self.ledger.layouts:
                    found.append((other, there))
        if value in self.fed_back:
            found.append((self.fed_back[value], layout))
        found += [(out, layout) for out, argument in self.fed_back.items() if argument == value]
        return found


def _rewritten(
    solution: AlpaSolution,
    ledger: AlpaLedger,
    split: Mapping[int, Layout],
    gathered: Mapping[int, Communication],
    feedback: Mapping[int, int],
) -> AlpaSolution:
    graph, layouts = ledger.graph, solution.layouts
    inputs = [
        split.get(value, layout) for value, layout in zip(graph.inputs, layouts.inputs, strict=True)
    ]
    outputs = list(layouts.outputs)
    for out, argument in feedback.items():
        outputs[out] = inputs[argument]
    values = {value: split.get(value, layout) for value, layout in layouts.values.items()}
    communications = tuple(
        replace(c, kind=REDUCE_SCATTER) if c.operand is None and c.value in split else c
        for c in solution.communications
    )
    return replace(
        solution,
        layouts=Layouts(tuple(inputs), tuple(outputs), values, layouts.uses),
        communications=(*communications, *gathered.values()),
    )
