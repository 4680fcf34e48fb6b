"""The traced step as nodes with ways.

    argument                       one dim along one axis, or replicated at a penalty
    dot, convolution, lookup       `ways`
    reshape read more than once    any one dim along one axis that it carries, or replicated
                                   (Alpa does so where the mesh has one axis, or may be mixed)
    broadcast of a scalar          one dim along one axis, or replicated at a penalty
    carry of a loop                any layout; the body's result is brought to it every time
    constant, source, opaque       replicated: a reader cuts its part out of it for nothing
    anything else                  follows an operand, and adds to that operand's node

Alpa's iota and random numbers have a choice, or a penalty where replicated; here they are sources.
What is inside a loop counts as often as it happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cfp.affine import OpMap
from cfp.layouts import Layout, whole
from cfp.templates.alpa.batch import BatchDims
from cfp.templates.alpa.carry import Part, carry, parts
from cfp.templates.alpa.cost import Cluster
from cfp.templates.alpa.depth import choose, depths
from cfp.templates.alpa.live import live_equations
from cfp.templates.alpa.options import AlpaOptions
from cfp.templates.alpa.problem import Problem, Read, Sum
from cfp.templates.alpa.ways import (
    Way,
    all_layouts,
    contraction_ways,
    is_contraction,
    tensor_layouts,
)
from cfp.trace import LOOP_ENTER, LOOP_SLICE, Equation, Graph

TRIVIAL = 0  # the node of everything that is replicated without a choice


@dataclass(slots=True)
class Builder:
    """Fills a `Problem` while it walks over the equations.

    node, layouts: of every value, which node makes it, and its layout in each of the node's ways.
    asked: for every contraction, the layouts asked of its operands in each way.
    """

    graph: Graph
    cluster: Cluster
    options: AlpaOptions
    batch: BatchDims
    aliases: Mapping[int, int]  # value -> the argument it replaces
    problem: Problem = field(init=False)
    node: dict[int, int] = field(default_factory=dict)
    layouts: dict[int, tuple[Layout, ...]] = field(default_factory=dict)
    asked: dict[tuple[int, int], tuple[Layout, ...]] = field(default_factory=dict)
    chosen: set[int] = field(default_factory=set)  # values of operations that are not trivial
    _finest: list[int] = field(default_factory=list)  # per node, the most parts of a layout
    _constant: set[int] = field(default_factory=set)
    _depths: list[int] = field(default_factory=list)
    _sums: dict[int, Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problem = Problem(self.cluster)
        self._whole = whole(len(self.cluster.shape))
        self._depths = depths(self.graph)
        self._open([0.0], [self._whole])
        for value in self.graph.values:
            if value.producer is None:
                self._leaf(value.index)

    # __slots__ need the names that __post_init__ sets
    _whole: Layout = field(init=False)

    def build(self) -> Problem:
        live = live_equations(self.graph)
        for equation in self.graph.equations:
            if equation.index in live:
                self._equation(equation)
        for loop in self.graph.loops:
            for entered, left in loop.carries:
                if entered in live:
                    self._carry_edge(entered, left, self.graph.trips(loop.index))
        for value, argument in self.aliases.items():
            if set(self.layouts[value]) & set(self.layouts[argument]):
                self._read(value, self.node[argument], self.layouts[argument], alias=True)
        return self.problem

    def _open(self, own: Sequence[float], made: Sequence[Layout]) -> int:
        self._finest.append(max(self.cluster.tiles(layout) for layout in made))
        return self.problem.node(own)

    def _make(self, value: int, node: int, layouts: Sequence[Layout]) -> None:
        self.node[value], self.layouts[value] = node, tuple(layouts)

    def _leaf(self, value: int) -> None:
        """An argument, or a constant."""
        if value in self.graph.constants or not self.graph.values[value].shape:
            self._make(value, TRIVIAL, [self._whole])
            if value in self.graph.constants:
                self._constant.add(value)
            else:
                self.problem.own[TRIVIAL][0] += self.cluster.replicated_penalty
            return
        shape, penalty = self.graph.values[value].shape, self.cluster.replicated_penalty
        single, flat = tensor_layouts(shape, self.cluster, self.options)
        layouts = [*single, *flat]
        own = [0.8 * penalty if flat else 0.0] * len(single) + [0.0] * len(flat)
        if self.options.allow_replicated_parameters or not layouts:
            layouts, own = [*layouts, self._whole], [*own, penalty]
        self._choice(value, layouts, own)

    def _choice(self, value: int, layouts: list[Layout], own: list[float]) -> int:
        """A node for one value."""
        allowed = self._with_batch(value, layouts)
        own = [own[i] for i in allowed]
        layouts = [layouts[i] for i in allowed]
        node = self._open(own, layouts)
        self._make(value, node, layouts)
        return node

    def _with_batch(self, value: int, layouts: Sequence[Layout]) -> list[int]:
        """The layouts that have the batch on the axis that it is forced on (FilterStrategy)."""
        everything = list(range(len(layouts)))
        axis = self.cluster.forced_axis
        if axis is None or value not in self.batch:
            return everything
        dim = self.batch[value]
        if self.cluster.shape[axis] > 1:
            kept = [i for i in everything if layouts[i][axis] == dim]
        else:
            kept = [i for i in everything if dim not in layouts[i]]
        return kept or everything

    def _equation(self, equation: Equation) -> None:
        op = equation.op
        if op.map is None or not equation.inputs or _is_source(equation):
            self._replicated(equation)
        elif is_contraction(op):
            self._contraction(equation)
        elif equation.primitive == LOOP_ENTER:
            layouts = all_layouts(op.out_shapes[0], self.cluster)
            node = self._choice(equation.outputs[0], layouts, [0.0] * len(layouts))
            self._operand(equation, 0, node, self.layouts[equation.outputs[0]])
        elif self._is_scalar_broadcast(equation):
            penalty = self.cluster.replicated_penalty
            layouts = [*tensor_layouts(op.out_shapes[0], self.cluster, self.options)[0]]
            own = [0.0] * len(layouts)
            self._choice(equation.outputs[0], [*layouts, self._whole], [*own, penalty])
        elif self._reshapes_by_choice(equation):
            self._reshape(equation)
        else:
            for part in parts(op):
                self._follow(equation, part)
        if all(value in self._constant for value in equation.inputs) and not _is_source(equation):
            self._constant.update(equation.outputs)

    def _replicated(self, equation: Equation) -> None:
        for operand in range(len(equation.inputs)):
            self._operand(equation, operand, TRIVIAL, (self._whole,))
        for value in equation.outputs:
            self._make(value, TRIVIAL, [self._whole])

    def _contraction(self, equation: Equation) -> None:
        ways = contraction_ways(equation.op, self.cluster, self.options)
        value = equation.outputs[0]
        allowed = self._with_batch(value, [way.results[0] for way in ways])
        ways = [ways[i] for i in allowed]
        times = self.graph.trips(equation.loop)
        node = self._open([way.cost * times for way in ways], [way.results[0] for way in ways])
        self._ways(equation, Part(tuple(range(len(equation.inputs))), (0,)), node, ways)
        for operand in range(len(equation.inputs)):
            self.asked[equation.index, operand] = tuple(way.operands[operand] for way in ways)
        self.chosen.add(value)

    def _follow(self, equation: Equation, part: Part) -> None:
        mapping = equation.op.map
        assert mapping is not None
        step = 0.1 / max(1, *self._depths)

        def priority(operand: int) -> float:
            value = equation.inputs[operand]
            return self._finest[self.node[value]] + self._depths[value] * step

        argument = self.aliases.get(equation.outputs[part.results[0]])
        alias = next((k for k in part.operands if equation.inputs[k] == argument), None)
        operand = choose(part.operands, equation.op.in_shapes, priority, step, alias)
        value = equation.inputs[operand]
        known: dict[Layout, Way] = {}
        for layout in self.layouts[value]:
            if layout not in known:
                known[layout] = carry(mapping, part, operand, layout, self.cluster)
        ways = [known[layout] for layout in self.layouts[value]]
        self._ways(equation, part, self.node[value], ways)

    def _reshape(self, equation: Equation) -> None:
        """A node of its own, with every layout that the reshape carries back to its operand."""
        mapping = equation.op.map
        assert mapping is not None
        shape, value = equation.op.out_shapes[0], equation.outputs[0]
        single, flat = tensor_layouts(shape, self.cluster, self.options)
        backward = OpMap(mapping.sizes, mapping.results, mapping.operands, exact=mapping.exact)
        back = {self._whole: self._whole}
        for layout in (*single, *flat):
            way = carry(backward, Part((0,), (0,)), 0, layout, self.cluster)
            if way.operands[0] == layout:
                back[layout] = way.results[0]
        penalty = self.cluster.replicated_penalty
        own = [penalty if layout == self._whole else 0.0 for layout in back]
        node = self._choice(value, list(back), own)
        self._operand(equation, 0, node, tuple(back[layout] for layout in self.layouts[value]))
        self.chosen.add(value)

    def _ways(self, equation: Equation, part: Part, node: int, ways: Sequence[Way]) -> None:
        """The results, reads and sums of a part that belongs to `node`."""
        times = self.graph.trips(equation.loop)
        for place, operand in enumerate(part.operands):
            self._operand(equation, operand, node, tuple(way.operands[place] for way in ways))
        for place, result in enumerate(part.results):
            value = equation.outputs[result]
            made = tuple(way.results[place] for way in ways)
            self._make(value, node, made)
            if any(way.sums for way in ways):
                size_bytes = self.graph.values[value].size_bytes
                axes = tuple(way.sums for way in ways)
                term = Sum(value, size_bytes, node, axes, made, times, equation.index)
                self.problem.sums.append(term)
                self._sums[value] = term
                self.chosen.add(value)
        self._share(equation)

    def _share(self, equation: Equation) -> None:
        """Two dots that are added need one all-reduce (AllReduceReassociate)."""
        if equation.primitive not in ("add", "add_any"):
            return
        terms = [self._sums.get(value) for value in equation.inputs]
        first, second = terms
        if first is None or second is None or first is second:
            return
        dots = {self.graph.equations[term.equation].primitive for term in (first, second)}
        if dots == {"dot_general"}:
            self.problem.shared.append((first, second))

    def _operand(
        self, equation: Equation, operand: int, reader: int, wanted: tuple[Layout, ...]
    ) -> None:
        self._read(
            equation.inputs[operand],
            reader,
            wanted,
            times=_times(self.graph, equation),
            equation=equation.index,
            operand=operand,
        )

    def _read(
        self,
        value: int,
        reader: int,
        wanted: tuple[Layout, ...],
        *,
        times: int = 1,
        equation: int | None = None,
        operand: int = 0,
        alias: bool = False,
    ) -> None:
        maker, made = self.node[value], self.layouts[value]
        size_bytes = self.graph.values[value].size_bytes
        still = all(layout == self._whole for layout in made)  # cut for nothing
        if (still and not alias) or (maker == reader and made == wanted):
            return
        self.problem.reads.append(
            Read(value, size_bytes, maker, made, reader, wanted, times, equation, operand, alias)
        )

    def _carry_edge(self, entered: int, left: int, trips: int) -> None:
        inside = self.graph.equations[entered].outputs[0]
        result = self.graph.equations[left].inputs[0]
        self._read(result, self.node[inside], self.layouts[inside], times=trips, equation=left)

    def _is_scalar_broadcast(self, equation: Equation) -> bool:
        return (
            equation.primitive == "broadcast_in_dim"
            and not equation.op.in_shapes[0]
            and bool(equation.op.out_shapes[0])
            and equation.inputs[0] not in self._constant
        )

    def _reshapes_by_choice(self, equation: Equation) -> bool:
        value = equation.outputs[0]
        users = len(self.graph.readers[value]) + (value in self.graph.returned)
        several = len(self.cluster.axes) > 1 and not self.options.allow_mixed_mesh_shape
        chosen = self.node[equation.inputs[0]] != TRIVIAL and bool(equation.op.out_shapes[0])
        return equation.primitive == "reshape" and users != 1 and not several and chosen


def _is_source(equation: Equation) -> bool:
    """Whether the results hold more than the operands say: counters and random numbers."""
    return equation.primitive.startswith(("iota", "random_", "rng_", "empty"))


def _times(graph: Graph, equation: Equation) -> int:
    """How often an operand is read: what a loop takes in or slices is read from outside it."""
    if equation.primitive in (LOOP_ENTER, LOOP_SLICE) and equation.loop is not None:
        return graph.trips(graph.loops[equation.loop].parent)
    return graph.trips(equation.loop)
