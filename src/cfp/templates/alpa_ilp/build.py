"""The traced step as nodes with ways.

    argument                       one dim along one axis, or replicated at a penalty
    dot, convolution, lookup       `ways`
    reshape read more than once,   one dim along one axis, or replicated at a penalty; where the
    merged operand (`points`)      mesh may be mixed also one dim along all axes, or the batch
                                   along the first and another dim along another. Alpa has these
                                   where the mesh has one axis or may be mixed
    broadcast of a scalar          one dim along one axis, or replicated at a penalty
    carry of a loop                any layout; the body's result is brought to it every time
    constant, source, opaque       replicated: a reader cuts its part out of it for nothing
    anything else                  follows an operand (`depth`, `carry`): joins its node

Alpa's iota and random numbers have a choice, or a penalty where replicated; here they are sources.
An output that replaces an argument must come out in the argument's layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cfp.affine import OpMap
from cfp.layouts import Layout, fits
from cfp.templates.alpa_ilp.batch import BatchDims
from cfp.templates.alpa_ilp.carry import OperandGroup, carry, operand_groups
from cfp.templates.alpa_ilp.cost import Cluster
from cfp.templates.alpa_ilp.depth import choose, depths
from cfp.templates.alpa_ilp.ledger import TRIVIAL, AlpaLedger
from cfp.templates.alpa_ilp.live import live_equations
from cfp.templates.alpa_ilp.options import AlpaOptions
from cfp.templates.alpa_ilp.points import merge_points, merged_operands
from cfp.templates.alpa_ilp.problem import Sum
from cfp.templates.alpa_ilp.ways import (
    DOT,
    Way,
    all_layouts,
    contraction_ways,
    is_contraction,
    tensor_layouts,
)
from cfp.trace import LOOP_ENTER, Equation, Graph


def build(
    graph: Graph,
    cluster: Cluster,
    options: AlpaOptions,
    batch: BatchDims,
    fed_back: Mapping[int, int],
) -> AlpaLedger:
    """Returns the problem of a step; `fed_back` maps a value to the argument it replaces in the
    next step."""
    ledger = AlpaLedger(graph, cluster, batch)
    live = live_equations(graph)
    by_choice = len(cluster.axes) < 2 or options.allow_mixed_mesh_shape
    depth = depths(graph)
    builder = _Builder(
        ledger,
        options,
        fed_back,
        depth,
        0.1 / max(1, *depth),
        by_choice,
        merge_points(graph, live) if by_choice else frozenset(),
    )
    for leaf in graph.values:
        if leaf.producer is None:
            builder.leaf(leaf.index)
    for equation in graph.equations:
        if equation.index in live:
            builder.equation(equation)
    for loop in graph.loops:
        for entered, left in loop.carries:
            if entered in live:
                builder.close(entered, left, graph.times(loop.index))
    for value, argument in fed_back.items():
        builder.alias(value, argument)
    return ledger


@dataclass(slots=True)
class _Builder:
    """Builds the problem of a step, with one rule per method. `shared` are values that dots read
    through a reshape they share.

    `step` is what one step of depth adds to an operand's priority.
    """

    ledger: AlpaLedger
    options: AlpaOptions
    fed_back: Mapping[int, int]
    depth: list[int]
    step: float
    by_choice: bool
    shared: frozenset[int]
    constant: set[int] = field(default_factory=set)
    points: dict[int, tuple[int, tuple[Layout, ...]]] = field(default_factory=dict)

    def leaf(self, value: int) -> None:
        """Adds an argument, or a constant."""
        ledger, shape = self.ledger, self.ledger.graph.values[value].shape
        penalty = ledger.cluster.replicated_penalty
        if value in ledger.graph.constants:
            self.constant.add(value)
            ledger.make(value, TRIVIAL, [ledger.whole])
            return
        single, flat = tensor_layouts(shape, ledger.cluster, self.options)
        layouts = [*single, *flat]
        own = [0.8 * penalty if flat else 0.0] * len(single) + [0.0] * len(flat)
        if self.options.allow_replicated_parameters or not layouts:
            layouts, own = [*layouts, ledger.whole], [*own, penalty]
        ledger.choice(value, layouts, own)

    def equation(self, equation: Equation) -> None:
        if equation.op.map is None or not equation.inputs or _is_source(equation):
            self._replicated(equation)
            return
        if is_contraction(equation.op):
            self._contraction(equation)
        elif equation.primitive == LOOP_ENTER:
            self._enter(equation)
        elif equation.primitive == "broadcast_in_dim" and self._spreads_scalar(equation):
            self._scalar_broadcast(equation)
        elif equation.primitive == "reshape" and self._has_choice(equation):
            self._reshape(equation)
        else:
            for group in operand_groups(equation.op):
                self._follow(equation, group)
            self._share(equation)
        if self.constant.issuperset(equation.inputs):
            self.constant.update(equation.outputs)

    def close(self, entered: int, left: int, times: int) -> None:
        """Adds what a loop's body hands to its next iteration."""
        ledger, equations = self.ledger, self.ledger.graph.equations
        inside, result = equations[entered].outputs[0], equations[left].inputs[0]
        maker = ledger.node[result], ledger.layouts[result]
        reader = ledger.node[inside], ledger.layouts[inside]
        ledger.read(result, maker, reader, times=times, at=(left, 0))

    def alias(self, value: int, argument: int) -> None:
        ledger = self.ledger
        if set(ledger.layouts[value]) & set(ledger.layouts[argument]):
            maker = ledger.node[value], ledger.layouts[value]
            reader = ledger.node[argument], ledger.layouts[argument]
            ledger.read(value, maker, reader, alias=True)

    def _replicated(self, equation: Equation) -> None:
        for operand in range(len(equation.inputs)):
            self.ledger.operand(equation, operand, TRIVIAL, (self.ledger.whole,))
        for value in equation.outputs:
            self.ledger.make(value, TRIVIAL, [self.ledger.whole])

    def _contraction(self, equation: Equation) -> None:
        ledger, value = self.ledger, equation.outputs[0]
        ways = contraction_ways(equation.op, ledger.cluster, self.options)
        ways = [ways[i] for i in ledger.with_batch(value, [way.results[0] for way in ways])]
        times = ledger.graph.times(equation.loop)
        made = [way.results[0] for way in ways]
        node = ledger.open([way.cost * times for way in ways], made)
        operands = range(len(equation.inputs))
        for operand in operands:
            ledger.asked[equation.index, operand] = tuple(way.operands[operand] for way in ways)
        merged = merged_operands(equation) if equation.primitive == DOT else {}
        through = [operand for operand, read in merged.items() if read in self.shared]
        for operand in through:
            self._read_merged(equation, operand, node)
        rest = OperandGroup(tuple(operand for operand in operands if operand not in through), (0,))
        ledger.record(equation, rest, node, [_without(way, through) for way in ways])
        ledger.chosen.add(value)

    def _read_merged(self, equation: Equation, operand: int, node: int) -> None:
        """Reads an operand through the reshape that the dots which read it share."""
        ledger, value = self.ledger, equation.inputs[operand]
        times = ledger.graph.times(equation.loop)
        at = (equation.index, operand)
        if value not in self.points:
            layouts = self._reshape_layouts(value)
            allowed = ledger.with_batch(value, layouts)
            layouts = [layouts[i] for i in allowed]
            penalty = ledger.cluster.replicated_penalty
            own = [penalty if layout == ledger.whole else 0.0 for layout in layouts]
            if ledger.node[value] == TRIVIAL:
                own = [0.0] * len(layouts)
            self.points[value] = (ledger.open(own, layouts), tuple(layouts))
            maker = ledger.node[value], ledger.layouts[value]
            ledger.read(value, maker, self.points[value], times=times, at=at)
        reader = node, ledger.asked[at]
        ledger.read(value, self.points[value], reader, times=times, at=at)

    def _follow(self, equation: Equation, group: OperandGroup) -> None:
        ledger, mapping = self.ledger, equation.op.map
        assert mapping is not None
        step = self.step

        def priority(operand: int) -> float:
            value = equation.inputs[operand]
            return ledger.finest[ledger.node[value]] + self.depth[value] * step

        argument = self.fed_back.get(equation.outputs[group.results[0]])
        alias = next((k for k in group.operands if equation.inputs[k] == argument), None)
        operand = choose(group.operands, equation.op.in_shapes, priority, step, alias)
        value = equation.inputs[operand]
        known = {
            layout: carry(mapping, group, operand, layout, ledger.cluster)
            for layout in set(ledger.layouts[value])
        }
        ways = [known[layout] for layout in ledger.layouts[value]]
        ledger.record(equation, group, ledger.node[value], ways)

    def _enter(self, equation: Equation) -> None:
        layouts = all_layouts(equation.op.out_shapes[0], self.ledger.cluster)
        value = equation.outputs[0]
        node = self.ledger.choice(value, layouts, [0.0] * len(layouts))
        self.ledger.operand(equation, 0, node, self.ledger.layouts[value])

    def _scalar_broadcast(self, equation: Equation) -> None:
        ledger = self.ledger
        single, _ = tensor_layouts(equation.op.out_shapes[0], ledger.cluster, self.options)
        own = [0.0] * len(single) + [ledger.cluster.replicated_penalty]
        ledger.choice(equation.outputs[0], [*single, ledger.whole], own)

    def _spreads_scalar(self, equation: Equation) -> bool:
        """Returns whether a constant is spread, which Alpa replicates."""
        scalar = not equation.op.in_shapes[0] and bool(equation.op.out_shapes[0])
        return scalar and equation.inputs[0] not in self.constant

    def _reshape(self, equation: Equation) -> None:
        """Adds a node with every layout that the reshape carries back to its operand."""
        ledger, mapping, value = self.ledger, equation.op.map, equation.outputs[0]
        assert mapping is not None
        backward = OpMap(mapping.sizes, mapping.results, mapping.operands, exact=mapping.exact)
        back: dict[Layout, Layout] = {}
        for layout in self._reshape_layouts(value):
            way = carry(backward, OperandGroup((0,), (0,)), 0, layout, ledger.cluster)
            if way.operands[0] == layout:
                back[layout] = way.results[0]
        penalty = ledger.cluster.replicated_penalty
        own = [penalty if layout == ledger.whole else 0.0 for layout in back]
        node = ledger.choice(value, list(back), own)
        ledger.operand(equation, 0, node, tuple(back[made] for made in ledger.layouts[value]))
        ledger.chosen.add(value)

    def _has_choice(self, equation: Equation) -> bool:
        value, graph = equation.outputs[0], self.ledger.graph
        users = len(graph.readers[value]) + (value in graph.returned)
        moves = self.ledger.node[equation.inputs[0]] != TRIVIAL
        return self.by_choice and users != 1 and moves and bool(equation.op.out_shapes[0])

    def _reshape_layouts(self, value: int) -> list[Layout]:
        """Returns the layouts with one dim split, and those with the batch along the first axis and
        another dim along another."""
        ledger, shape = self.ledger, self.ledger.graph.values[value].shape
        cluster, batch = ledger.cluster, ledger.batch.get(value)
        single, flat = tensor_layouts(shape, cluster, self.options)
        pairs: list[Layout] = []
        if batch is not None and len(cluster.axes) > 1:
            first = cluster.axes[0]
            pairs = [
                tuple(batch if axis == first else dim for axis, dim in enumerate(layout))
                for layout in single
                if layout[first] is None and batch not in layout
            ]
        pairs = [layout for layout in pairs if fits(layout, shape, cluster.shape)]
        return [*single, *flat, *pairs, ledger.whole]

    def _share(self, equation: Equation) -> None:
        """Records that two contractions which are added need one all-reduce
        (AllReduceReassociate)."""
        if equation.primitive not in ("add", "add_any"):
            return
        first, second = (self._contracted(value) for value in equation.inputs)
        if first is not None and second is not None and first.value != second.value:
            self.ledger.problem.shared.append((first, second))

    def _contracted(self, value: int) -> Sum | None:
        """Returns the contraction that made a value, through transposes, which XLA folds into
        it."""
        ledger, made, equations = self.ledger, value, self.ledger.graph.equations
        while (producer := ledger.graph.values[made].producer) is not None:
            if equations[producer].primitive != "transpose":
                break
            (made,) = equations[producer].inputs
        term = ledger.sums.get(made)
        if term is None or not is_contraction(equations[term.equation].op):
            return None
        if len(ledger.graph.readers[made]) > 1 or made in ledger.graph.returned:
            return None
        return replace(term, made=ledger.layouts[value])


def _is_source(equation: Equation) -> bool:
    """Returns whether the results hold more than the operands say: counters and random numbers."""
    return equation.primitive.startswith(("iota", "random_", "rng_", "empty"))


def _without(way: Way, operands: list[int]) -> Way:
    kept = tuple(layout for k, layout in enumerate(way.operands) if k not in operands)
    return Way(kept, way.results, way.sums, way.cost)
