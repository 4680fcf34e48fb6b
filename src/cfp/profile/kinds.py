"""What there is to measure: the distinct segments as programs, and the ways to lay each out.

An `Option` is one way to run a segment: a strategy per block, and how its training state lies.
Outside loops a segment is one program. In a loop it is one iteration, and what runs once per step
(the update of the stacked parameters): a stacked tensor lies as its slices do, one dim further, and
the slices of a gradient lie as the update wants the stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cfp.analysis import Analysis
from cfp.blocks import Strategy
from cfp.blocks.pairs import find_pairs
from cfp.layouts import Entries, Layout, Layouts
from cfp.layouts.state import State, propagate_state
from cfp.segments import DistinctSegment
from cfp.segments.extract import Extract, extract
from cfp.segments.program import Cutter
from cfp.trace import LOOP_EXIT, LOOP_SLICE, LOOP_STACK, Graph, source_line

LEAVING = frozenset({LOOP_STACK, LOOP_EXIT})


@dataclass(frozen=True, slots=True)
class Option:
    """`combo[i]` is the index of block i's strategy."""

    combo: tuple[int, ...]
    state: State = State.BLOCK


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor outside a loop and its counterpart inside, by position; `shift` dims further out."""

    outside: int
    inside: int
    shift: int


@dataclass(frozen=True, slots=True)
class Joint:
    """Where the second of two neighbours in one program reads what the first made: an operand of an
    equation, and the argument it is of a segment alone."""

    equation: int
    operand: int
    argument: int


@dataclass(frozen=True, slots=True)
class Kind:
    """A distinct segment.

    `cuts` are its programs, the loop's body first. `chained` is two neighbours in one program,
    where the segment occurs twice in a row outside loops, and `joints` where they meet. `slices`
    link arguments of the second cut to arguments of the first (stacked parameters, and what the
    loop reads whole), `stacks` arguments of the second to results of the first (stacked
    gradients). Of loops in loops, `further` are the slices of the cuts after the second.
    """

    index: int
    name: str
    occurrences: int  # times it happens in a step
    strategies: tuple[tuple[Strategy, ...], ...]
    cuts: tuple[Extract, ...]
    chained: Extract | None
    joints: tuple[Joint, ...]
    slices: tuple[Link, ...]
    stacks: tuple[Link, ...]
    further: tuple[tuple[Link, ...], ...] = ()

    @property
    def space(self) -> int:
        return math.prod(len(choices) for choices in self.strategies)

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return self.cuts[0].blocks.mesh_shape

    def chosen(self, option: Option) -> tuple[Strategy, ...]:
        return tuple(self.strategies[i][choice] for i, choice in enumerate(option.combo))

    def show(self, option: Option) -> str:
        """`rows, heads, contracted`, a name per block; `rows+columns` on two axes."""
        words = []
        for block, strategy in zip(self.cuts[0].blocks.blocks, self.chosen(option), strict=True):
            names = ["whole" if i is None else block.candidates[i].name for i in strategy]
            words.append("+".join(names))
        state = "" if option.state is State.BLOCK else f" ({option.state.value})"
        return ", ".join(words) + state

    def layouts(self, option: Option) -> tuple[Layouts, ...]:
        """How the tensors of every cut lie."""
        first = self.cuts[0]
        inner = option.state if len(self.cuts) == 1 else _inside(option.state)
        chosen = self.chosen(option)
        body = _lay(first, chosen, inner)
        if len(self.cuts) == 1:
            return (body,)
        held = {
            link.outside: shift_dims(body.inputs[link.inside], link.shift) for link in self.slices
        }
        outer = State.BLOCK if option.state is State.FSDP else option.state
        once = _lay(self.cuts[1], (), outer, held=held)
        wanted = {
            link.inside: shift_dims(once.inputs[link.outside], -link.shift) for link in self.stacks
        }
        rest = [
            _lay(
                cut,
                (),
                outer,
                held={n.outside: shift_dims(body.inputs[n.inside], n.shift) for n in links},
            )
            for cut, links in zip(self.cuts[2:], self.further, strict=True)
        ]
        return _lay(first, chosen, inner, wanted=wanted), once, *rest

    def chained_layouts(self, option: Option) -> Layouts:
        """Of two in a row, the second reading what the first made as if it were alone."""
        assert self.chained is not None
        (alone,) = self.layouts(option)
        entries = {(j.equation, j.operand): alone.inputs[j.argument] for j in self.joints}
        return _lay(self.chained, self.chosen(option) * 2, option.state, entries=entries)


def find_kinds(analysis: Analysis, outer: Sequence[int | None] = ()) -> tuple[Kind, ...]:
    """`outer`, one candidate per block of the step, is what the mesh's first axis must split."""
    graph, blocks, segments = analysis.graph, analysis.grouping, analysis.cut
    pairs = find_pairs(graph, blocks.parameters)
    cutter = Cutter(graph, blocks, segments)

    def cuts(*indices: int) -> tuple[Extract, ...]:
        return tuple(extract(graph, blocks, p, pairs) for p in cutter.programs(*indices))

    kinds = []
    for distinct in analysis.distinct_segments:
        found = cuts(distinct.representative)
        slices, stacks = _links(graph, found)
        first = None if len(found) > 1 else _first_of_two(distinct)
        kinds.append(
            Kind(
                index=distinct.index,
                name=_name(analysis, distinct.representative),
                occurrences=distinct.trips,
                strategies=_strategies(found[0], outer),
                cuts=found,
                chained=None if first is None else cuts(first, first + 1)[0],
                joints=() if first is None else _joints(graph, cutter, first, found[0]),
                slices=slices,
                stacks=stacks,
                further=tuple(_links(graph, (found[0], cut))[0] for cut in found[2:]),
            )
        )
    return tuple(kinds)


def _strategies(cut: Extract, outer: Sequence[int | None]) -> tuple[tuple[Strategy, ...], ...]:
    """Of every block; those with `outer` on the first axis, where there are any."""
    found = []
    for block, number in zip(cut.blocks.blocks, cut.blocks_of, strict=True):
        every = block.strategies(cut.blocks.mesh_shape)
        some = tuple(s for s in every if outer and s[0] == outer[number])
        found.append(some or every)
    return tuple(found)


def _first_of_two(distinct: DistinctSegment) -> int | None:
    """The first of two neighbours of the kind: the representative, if it has a next one."""
    starts = [i for i in distinct.occurrences if i + 1 in distinct.occurrences]
    if not starts:
        return None
    return distinct.representative if distinct.representative in starts else starts[-1]


def _joints(graph: Graph, cutter: Cutter, first: int, alone: Extract) -> tuple[Joint, ...]:
    (both,), (second,) = cutter.programs(first, first + 1), cutter.programs(first + 1)
    if not alike(graph, second.inputs, alone.inputs):
        return ()
    place = {equation: i for i, equation in enumerate(both.equations)}
    made = {v: i for i, v in enumerate(second.inputs) if v not in set(both.inputs)}
    return tuple(
        Joint(place[equation], operand, made[value])
        for equation in second.equations
        for operand, value in enumerate(graph.equations[equation].inputs)
        if value in made
    )


def alike(graph: Graph, values: Sequence[int], others: Sequence[int]) -> bool:
    """The same shapes and dtypes in the same order."""
    sorts = [
        [(graph.values[v].shape, graph.values[v].dtype) for v in some] for some in (values, others)
    ]
    return sorts[0] == sorts[1]


def _lay(
    cut: Extract,
    strategies: tuple[Strategy, ...],
    state: State,
    *,
    held: Mapping[int, Layout] | None = None,
    wanted: Mapping[int, Layout] | None = None,
    entries: Entries | None = None,
) -> Layouts:
    return propagate_state(
        cut.graph,
        cut.blocks,
        strategies,
        cut.blocks.mesh_shape,
        state,
        held=held,
        pairs=cut.goes_round,
        wanted=wanted,
        entries=entries,
    )


def _inside(state: State) -> State:
    """In a loop's body: its slices of parameters are split where the stacks are."""
    return State.FSDP if state is State.FSDP else State.BLOCK


def shift_dims(layout: Layout, shift: int) -> Layout:
    """The layout of the tensor with `shift` more dims in front; a split of those is given up."""
    return tuple(None if dim is None or dim + shift < 0 else dim + shift for dim in layout)


def _links(graph: Graph, cuts: tuple[Extract, ...]) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
    """How the second program's arguments meet the first one's arguments and results."""
    if len(cuts) < 2:
        return (), ()
    arguments = {value: i for i, value in enumerate(cuts[0].inputs)}
    results = {value: i for i, value in enumerate(cuts[0].outputs)}
    slices: list[Link] = []
    stacks: list[Link] = []
    for position, value in enumerate(cuts[1].inputs):
        if value in arguments:  # what the loop closes over
            slices.append(Link(position, arguments[value], 0))
        for reader in graph.readers[value]:
            equation = graph.equations[reader]
            if equation.primitive == LOOP_SLICE and equation.outputs[0] in arguments:
                slices.append(Link(position, arguments[equation.outputs[0]], 1))
        producer = graph.values[value].producer
        if producer is not None and graph.equations[producer].primitive in LEAVING:
            left = graph.equations[producer]
            if left.inputs[0] in results:
                shift = int(left.primitive == LOOP_STACK)
                stacks.append(Link(position, results[left.inputs[0]], shift))
    return tuple(slices), tuple(stacks)


def _name(analysis: Analysis, segment: int) -> str:
    """The functions its contractions are written in: `attention_half, mlp_half`."""
    seeds = [seed for b in analysis.segments[segment].blocks for seed in analysis.blocks[b].seeds]
    lines = [source_line(analysis.graph.equations[seed]) for seed in seeds]
    words = [line.rpartition("(")[2].rstrip(")") if "(" in line else line for line in lines]
    return ", ".join(dict.fromkeys(words))
