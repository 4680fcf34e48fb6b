"""The problem while it is written: which node makes a value, and its layout in each way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cfp.layouts import Layout, whole
from cfp.templates.alpa_ilp.batch import BatchDims
from cfp.templates.alpa_ilp.carry import OperandGroup
from cfp.templates.alpa_ilp.cost import Cluster
from cfp.templates.alpa_ilp.problem import AlpaProblem, Read, Sum
from cfp.templates.alpa_ilp.ways import Way
from cfp.trace import LOOP_ENTER, LOOP_SLICE, Equation, Graph

TRIVIAL = 0  # the node of everything that is replicated without a choice


@dataclass(slots=True)
class AlpaLedger:
    """node, layouts: of every value, which node makes it, and its layout in each of the ways.

    finest: per node, the most parts that a layout of its own has.
    asked: of every contraction's operands, the layout in each way.
    chosen: values of operations that have a choice, or are completed by an all-reduce.
    """

    graph: Graph
    cluster: Cluster
    batch: BatchDims
    problem: AlpaProblem = field(init=False)
    node: dict[int, int] = field(default_factory=dict)
    layouts: dict[int, tuple[Layout, ...]] = field(default_factory=dict)
    finest: list[int] = field(default_factory=list)
    sums: dict[int, Sum] = field(default_factory=dict)
    asked: dict[tuple[int, int], tuple[Layout, ...]] = field(default_factory=dict)
    chosen: set[int] = field(default_factory=set)
    whole: Layout = field(init=False)

    def __post_init__(self) -> None:
        self.problem = AlpaProblem(self.cluster)
        self.whole = whole(len(self.cluster.shape))
        self.open([0.0], [self.whole])

    def open(self, own: Sequence[float], made: Sequence[Layout]) -> int:
        """Adds a node with what its ways cost and the layouts it makes, and returns its number."""
        self.finest.append(max(self.cluster.tiles(layout) for layout in made))
        return self.problem.node(own)

    def make(self, value: int, node: int, layouts: Sequence[Layout]) -> None:
        self.node[value], self.layouts[value] = node, tuple(layouts)

    def choice(self, value: int, layouts: Sequence[Layout], own: Sequence[float]) -> int:
        """Adds a node that only decides the layout of one value, and returns its number."""
        allowed = self.with_batch(value, layouts)
        layouts = [layouts[i] for i in allowed]
        node = self.open([own[i] for i in allowed], layouts)
        self.make(value, node, layouts)
        return node

    def with_batch(self, value: int, layouts: Sequence[Layout]) -> list[int]:
        """Returns the layouts that have the batch on the axis that it is forced on
        (FilterStrategy).

        Alpa stops where there are none; here the value is then left free.
        """
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

    def record(
        self, equation: Equation, group: OperandGroup, node: int, ways: Sequence[Way]
    ) -> None:
        """Records the reads, the results and the sums of a group that belongs to `node`."""
        for place, operand in enumerate(group.operands):
            self.operand(equation, operand, node, tuple(way.operands[place] for way in ways))
        for place, result in enumerate(group.results):
            value = equation.outputs[result]
            made = tuple(way.results[place] for way in ways)
            self.make(value, node, made)
            if any(way.sums for way in ways):
                term = Sum(
                    value,
                    self.graph.values[value].size_bytes,
                    node,
                    tuple(way.sums for way in ways),
                    made,
                    self.graph.times(equation.loop),
                    equation.index,
                )
                self.problem.sums.append(term)
                self.sums[value] = term
                self.chosen.add(value)

    def operand(
        self, equation: Equation, operand: int, reader: int, wanted: tuple[Layout, ...]
    ) -> None:
        value = equation.inputs[operand]
        self.read(
            value,
            (self.node[value], self.layouts[value]),
            (reader, wanted),
            times=_times(self.graph, equation),
            at=(equation.index, operand),
        )

    def read(
        self,
        value: int,
        maker: tuple[int, tuple[Layout, ...]],
        reader: tuple[int, tuple[Layout, ...]],
        *,
        times: int = 1,
        at: tuple[int | None, int] = (None, 0),
        alias: bool = False,
    ) -> None:
        """Records a value on its way from one node to another (or the same), unless it never
        moves."""
        still = all(layout == self.whole for layout in maker[1])  # cut for nothing
        if (still and not alias) or maker == reader:
            return
        size_bytes = self.graph.values[value].size_bytes
        self.problem.reads.append(Read(value, size_bytes, *maker, *reader, times, *at, alias))


def _times(graph: Graph, equation: Equation) -> int:
    """Returns how often an operand is read: what a loop takes in or slices is read from outside
    it."""
    if equation.primitive in (LOOP_ENTER, LOOP_SLICE) and equation.loop is not None:
        return graph.times(graph.loops[equation.loop].parent)
    return graph.times(equation.loop)
