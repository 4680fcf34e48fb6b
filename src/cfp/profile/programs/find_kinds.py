"""Finds the kinds of a step: their programs, where they occur, and what their loops pair.

A kind's programs are cut out of the step at its representative. The correspondence says which
equation and value of every other occurrence each of theirs is, and the loops of the step say which
tensor outside a loop is which inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cfp.analysis import Analysis
from cfp.blocks import Block, Strategy
from cfp.blocks.feedback import find_feedback
from cfp.profile.programs.kinds import Chain, Kind, LoopPair, Place, Round
from cfp.segments import DistinctSegment
from cfp.segments.correspond import Correspondence, correspond
from cfp.segments.extract import Extract, extract_program
from cfp.segments.program import Cutter
from cfp.trace import LOOP_EXIT, LOOP_SLICE, LOOP_STACK, Graph, source_line

LEAVING = frozenset({LOOP_STACK, LOOP_EXIT})


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
