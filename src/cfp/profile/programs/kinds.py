"""What there is to measure: the distinct segments as programs, and the ways to lay each out.

An `Option` is one way to run a segment: a strategy per block, how its training state lies, and what
it keeps for its backward pass.
Outside loops a segment is one program. In a loop it is one iteration, and what runs once per step
(the update of the stacked parameters): a stacked tensor lies as its slices do, one dim further, and
the slices of a gradient lie as the update wants the stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cfp.analysis import Analysis
from cfp.blocks import REPLICATED, Block, Strategy
from cfp.blocks.feedback import find_feedback
from cfp.layouts import Layout, Layouts, Placed, substitute
from cfp.layouts.state import State, propagate_state
from cfp.segments import DistinctSegment
from cfp.segments.correspond import Correspondence, correspond
from cfp.segments.extract import Extract, extract_program
from cfp.segments.keep import Keep, levels, recomputation
from cfp.segments.program import Cutter
from cfp.trace import LOOP_EXIT, LOOP_SLICE, LOOP_STACK, Graph, source_line
from cfp.trace.recomputation import Recomputation

LEAVING = frozenset({LOOP_STACK, LOOP_EXIT})


@dataclass(frozen=True, slots=True)
class Option:
    """`combo[i]` is the index of block i's strategy, those with split streams counted after the
    others."""

    combo: tuple[int, ...]
    state: State = State.BLOCK
    keep: Keep = Keep.AS_WRITTEN


@dataclass(frozen=True, slots=True)
class LoopPair:
    """A tensor outside a loop and its counterpart inside, by position; `shift` dims further out."""

    outside: int
    inside: int
    shift: int


@dataclass(frozen=True, slots=True)
class Round:
    """An argument outside a loop, the result of the body that it was after the last iteration, and
    the argument of the body that this result becomes in the next, by position."""

    outside: int
    result: int
    inside: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kind occurs: the step's own equation, argument or result for each one of the kind's
    extracts; None where this occurrence has no such equation or makes the argument itself."""

    segment: int
    equations: tuple[tuple[int | None, ...], ...]
    arguments: tuple[tuple[int | None, ...], ...]
    results: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Two neighbours in one program, `both`: the equations of each in it, and its arguments, each
    with its position among those of one alone."""

    both: Extract
    equations: tuple[tuple[int | None, ...], tuple[int | None, ...]]
    arguments: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Kind:
    """A distinct segment.

    `extracts` are its programs, the loop's body first, and `places` where they occur in the step.
    `chain` is two neighbours, where the segment occurs twice in a row outside loops. `slices`
    pair arguments of the second extract to arguments of the first (stacked parameters, and what the
    loop reads whole), `stacks` arguments of the second to results of the first (stacked
    gradients), `rounds` likewise where these go round the loop (sums of gradients). Where there are
    loops in loops, `further` are the slices of the extracts after the second.
    """

    index: int
    name: str
    times: int  # how often it runs in a step
    strategies: tuple[tuple[Strategy, ...], ...]
    streams: tuple[tuple[Strategy, ...], ...]  # of each block, those with split streams
    extracts: tuple[Extract, ...]
    places: tuple[Place, ...]
    chain: Chain | None
    slices: tuple[LoopPair, ...]
    stacks: tuple[LoopPair, ...]
    rounds: tuple[Round, ...]
    further: tuple[tuple[LoopPair, ...], ...] = ()

    @property
    def chained(self) -> Extract | None:
        """Returns the program of two in a row."""
        return None if self.chain is None else self.chain.both

    @property
    def space(self) -> int:
        return math.prod(len(choices) for choices in self.strategies)

    @property
    def choices(self) -> tuple[tuple[Strategy, ...], ...]:
        """Returns all strategies of every block: `strategies`, then `streams`."""
        pairs = zip(self.strategies, self.streams, strict=True)
        return tuple((*plain, *streams) for plain, streams in pairs)

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return self.extracts[0].blocks.mesh_shape

    def chosen(self, option: Option) -> tuple[Strategy, ...]:
        pairs = zip(self.choices, option.combo, strict=True)
        return tuple(choices[choice] for choices, choice in pairs)

    def has_streams(self, option: Option) -> bool:
        """Returns whether an option splits streams: such options are not counted in `space`."""
        sizes = map(len, self.strategies)
        return any(choice >= size for choice, size in zip(option.combo, sizes, strict=True))

    def show(self, option: Option) -> str:
        """Returns `batch, output features`, a name per block; `batch+output features` on two
        axes."""
        words = []
        for block, strategy in zip(
            self.extracts[0].blocks.blocks, self.chosen(option), strict=True
        ):
            names = [REPLICATED if i is None else block.candidates[i].name for i in strategy]
            words.append("+".join(names))
        more = [] if option.state is State.BLOCK else [option.state.value]
        if option.keep is not Keep.AS_WRITTEN:
            more.append(f"keeps {option.keep.value}")
        return ", ".join(words) + (f" ({', '.join(more)})" if more else "")

    def layouts(self, option: Option) -> tuple[Layouts, ...]:
        """Returns the layouts of the tensors of every extract."""
        return self.lay(self.chosen(option), option.state, option.keep)

    @property
    def levels(self) -> dict[Keep, Recomputation]:
        """Returns what there is to choose from besides keeping what the step keeps as written."""
        return levels(self.extracts[0].graph, self.extracts[0].blocks)

    def lay(
        self, chosen: tuple[Strategy, ...], state: State, keep: Keep = Keep.AS_WRITTEN
    ) -> tuple[Layouts, ...]:
        """Returns the same, by the strategies of the blocks. A loop's body computes again what it
        does not keep, and what runs once has nothing to keep."""
        first = self.extracts[0]
        body, *rest = self._lay_all(chosen, state)
        again = recomputation(first.graph, first.blocks, keep)
        return replace(body, again=() if again is None else (again,)), *rest

    def _lay_all(self, chosen: tuple[Strategy, ...], state: State) -> tuple[Layouts, ...]:
        first = self.extracts[0]
        inner = state if len(self.extracts) == 1 else _inside(state)
        body = _lay(first, chosen, inner)
        if len(self.extracts) == 1:
            return (body,)
        held = {
            pair.outside: shift_dims(body.inputs[pair.inside], pair.shift) for pair in self.slices
        }
        outer = State.BLOCK if state is State.FSDP else state
        once = _lay(self.extracts[1], (), outer, held=held)
        wanted = {
            pair.inside: shift_dims(once.inputs[pair.outside], -pair.shift) for pair in self.stacks
        }
        rest = [
            _lay(
                extract,
                (),
                outer,
                held={n.outside: shift_dims(body.inputs[n.inside], n.shift) for n in pairs},
            )
            for extract, pairs in zip(self.extracts[2:], self.further, strict=True)
        ]
        rounds = {pair.result: once.inputs[pair.outside] for pair in self.rounds}
        body = _lay(first, chosen, inner, wanted={**wanted, **rounds})
        kept = {r.result for r in self.rounds if body.inputs[r.inside] == rounds[r.result]}
        if kept != rounds.keys():  # what goes round lies as the body takes it in
            wanted |= {result: rounds[result] for result in kept}
            body = _lay(first, chosen, inner, wanted=wanted)
        return body, once, *rest

    def chained_layouts(self, option: Option) -> Layouts:
        """Returns the layouts of two in a row, each laid out as if it were alone."""
        assert self.chain is not None
        (alone,), both = self.layouts(option), self.chain.both
        arguments = {value: alone.inputs[at] for value, at in self.chain.arguments.items()}
        placed = [Placed(self.extracts[0].graph, alone, some) for some in self.chain.equations]
        return substitute(both.graph, self.mesh_shape, placed, arguments, both.feedback)


def find_kinds(analysis: Analysis, outer: Sequence[int | None] = ()) -> tuple[Kind, ...]:
    """Returns the kinds of a step. `outer`, one candidate per block of the step, is what the mesh's
    first axis must split."""
    graph, blocks, segments = analysis.graph, analysis.grouping, analysis.segmentation
    feedback = find_feedback(graph, blocks.parameters)
    cutter = Cutter(graph, blocks, segments)

    def extracts(*indices: int) -> tuple[Extract, ...]:
        return tuple(extract_program(graph, blocks, p, feedback) for p in cutter.programs(*indices))

    like = correspond(graph, blocks, segments, cutter)
    kinds = []
    for distinct in analysis.distinct_segments:
        found = extracts(distinct.representative)
        slices, stacks, rounds = _loop_pairs(graph, found)
        first = None if len(found) > 1 else _first_of_two(distinct)
        places = tuple(_place(cutter, found, i, like[i]) for i in distinct.occurrences)
        chain = None
        if first is not None:
            two = tuple(place for place in places if place.segment in (first, first + 1))
            chain = _chain(extracts(first, first + 1)[0], found[0], two)
        kinds.append(
            Kind(
                index=distinct.index,
                name=_name(analysis, distinct.representative),
                times=distinct.times,
                strategies=_strategies(found[0], outer, Block.strategies),
                streams=_strategies(found[0], outer, Block.stream_strategies),
                extracts=found,
                places=places,
                chain=chain,
                slices=slices,
                stacks=stacks,
                rounds=rounds,
                further=tuple(_loop_pairs(graph, (found[0], extract))[0] for extract in found[2:]),
            )
        )
    return tuple(kinds)


def _place(
    cutter: Cutter, extracts: Sequence[Extract], segment: int, like: Correspondence
) -> Place:
    programs = cutter.programs(segment)
    enters = {value for program in programs for value in program.inputs}
    made = {value for program in programs for value in program.outputs}

    def known(values: Sequence[int], among: set[int]) -> tuple[int | None, ...]:
        found = (like.values.get(value) for value in values)
        return tuple(value if value in among else None for value in found)

    return Place(
        segment,
        tuple(tuple(like.equations.get(e) for e in extract.equations) for extract in extracts),
        tuple(known(extract.inputs, enters) for extract in extracts),
        tuple(known(extract.outputs, made) for extract in extracts),
    )


def _chain(both: Extract, alone: Extract, two: Sequence[Place]) -> Chain:
    """An argument that both have lies as the one of them wants it that updates it, or the first."""
    number = {value: i for i, value in enumerate(both.values)}
    at = {equation: i for i, equation in enumerate(both.equations)}
    rounds = set(alone.feedback.values())
    entering = {both.values[value] for value in both.graph.inputs}
    arguments: dict[int, int] = {}
    for updated in (True, False):
        for place in two:
            for position, value in enumerate(place.arguments[0]):
                if value in entering and (position in rounds) is updated:
                    arguments.setdefault(number[value], position)
    first, second = (
        tuple(None if e is None else at[e] for e in place.equations[0]) for place in two
    )
    return Chain(both, (first, second), arguments)


def _strategies(
    extract: Extract,
    outer: Sequence[int | None],
    listed: Callable[[Block, tuple[int, ...]], tuple[Strategy, ...]],
) -> tuple[tuple[Strategy, ...], ...]:
    """Returns the strategies of every block; those with `outer` on the first axis, where there are
    any."""
    found = []
    for block, number in zip(extract.blocks.blocks, extract.blocks_of, strict=True):
        every = listed(block, extract.blocks.mesh_shape)
        some = tuple(s for s in every if outer and s[0] == outer[number])
        found.append(some or every)
    return tuple(found)


def _first_of_two(distinct: DistinctSegment) -> int | None:
    """Returns the first of two neighbours of the kind: the representative, if it has a next one."""
    starts = [i for i in distinct.occurrences if i + 1 in distinct.occurrences]
    if not starts:
        return None
    return distinct.representative if distinct.representative in starts else starts[-1]


def _lay(
    extract: Extract,
    strategies: tuple[Strategy, ...],
    state: State,
    *,
    held: Mapping[int, Layout] | None = None,
    wanted: Mapping[int, Layout] | None = None,
) -> Layouts:
    return propagate_state(
        extract.graph,
        extract.blocks,
        strategies,
        state,
        held=held,
        feedback=extract.feedback,
        wanted=wanted,
    )


def _inside(state: State) -> State:
    """Returns the state in a loop's body: its slices of parameters are split where the stacks
    are."""
    return State.FSDP if state is State.FSDP else State.BLOCK


def shift_dims(layout: Layout, shift: int) -> Layout:
    """Returns the layout of the tensor with `shift` more dims in front; a split of those is given
    up."""
    return tuple(None if dim is None or dim + shift < 0 else dim + shift for dim in layout)


def _loop_pairs(
    graph: Graph, extracts: tuple[Extract, ...]
) -> tuple[tuple[LoopPair, ...], tuple[LoopPair, ...], tuple[Round, ...]]:
    """Returns the slices, stacks and rounds by which the second program's arguments meet the first
    one's arguments and results."""
    if len(extracts) < 2:
        return (), (), ()
    enter_of = {exit_: enter for loop in graph.loops for enter, exit_ in loop.carries}
    arguments = {value: i for i, value in enumerate(extracts[0].inputs)}
    results = {value: i for i, value in enumerate(extracts[0].outputs)}
    slices: list[LoopPair] = []
    stacks: list[LoopPair] = []
    rounds: list[Round] = []
    for position, value in enumerate(extracts[1].inputs):
        if value in arguments:  # what the loop closes over
            slices.append(LoopPair(position, arguments[value], 0))
        for reader in graph.readers[value]:
            equation = graph.equations[reader]
            if equation.primitive == LOOP_SLICE and equation.outputs[0] in arguments:
                slices.append(LoopPair(position, arguments[equation.outputs[0]], 1))
        producer = graph.values[value].producer
        left = None if producer is None else graph.equations[producer]
        if left is None or left.primitive not in LEAVING or left.inputs[0] not in results:
            continue
        result = results[left.inputs[0]]
        if left.primitive == LOOP_STACK:
            stacks.append(LoopPair(position, result, 1))
        elif (inside := graph.equations[enter_of[left.index]].outputs[0]) in arguments:
            rounds.append(Round(position, result, arguments[inside]))
    return tuple(slices), tuple(stacks), tuple(rounds)


def _name(analysis: Analysis, segment: int) -> str:
    """Returns the functions its contractions are written in: `attention_half, mlp_half`."""
    seeds = [seed for b in analysis.segments[segment].blocks for seed in analysis.blocks[b].seeds]
    lines = [source_line(analysis.graph.equations[seed]) for seed in seeds]
    words = [line.rpartition("(")[2].rstrip(")") if "(" in line else line for line in lines]
    return ", ".join(dict.fromkeys(words))
