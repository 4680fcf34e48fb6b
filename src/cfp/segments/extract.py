"""A program cut out of the step as a step of its own: a `Graph` and its `Blocks`, numbered afresh.

Everything that works on steps then works on programs: layouts follow from strategies, `rebuild`
runs it, its text says what it is. Numbers count from zero in the order of the equations, so the
same program cut out of two places, or of two models, is the same graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import jax

from cfp.blocks import Block, Blocks, Candidate
from cfp.blocks.recompute import Recomputed
from cfp.segments.program import Program, forward_loop
from cfp.trace import LOOP_EXIT, LOOP_SLICE, LOOP_STACK, Equation, Graph, Role, Value
from cfp.trace.calling import PLAIN

# The iterations that a loop's body is measured with. What a program takes once, however long its
# loop is (its devices wake up and meet: 0.25 ms on two cores), is divided by it; every run takes so
# many times longer.
MEASURED_ITERATIONS = 4


@dataclass(frozen=True, slots=True)
class Iteration:
    """How one iteration of a loop meets the others; arguments and results are positions.

    `carries` maps arguments to the results that replace them in the next iteration. `varies` are
    the other arguments that every iteration has anew; what is in neither is the same in all. `sums`
    are the carried arguments that add up gradients for the update after the loop. `kept` counts the
    iterations whose activations are there at once: a loop that is differentiated keeps those of
    all, a loop over micro-batches those of one.
    """

    carries: Mapping[int, int]
    varies: frozenset[int]
    sums: frozenset[int]
    kept: int


@dataclass(frozen=True, slots=True)
class Extract:
    """`values[i]`, `equations[i]` and `blocks_of[i]` name value, equation and block i as the step
    does.

    `feedback` maps results to the arguments they replace in the next step, by position; those
    `in_place` take their memory, too. One of a loop is an `iteration`, of which `times` happen in a
    step.
    """

    graph: Graph
    blocks: Blocks
    values: tuple[int, ...]
    equations: tuple[int, ...]
    blocks_of: tuple[int, ...]
    times: int
    feedback: Mapping[int, int]
    iteration: Iteration | None = None

    @property
    def iterations(self) -> int:
        """Returns how many iterations the measured program runs; 1 outside loops."""
        return 1 if self.iteration is None else MEASURED_ITERATIONS

    @property
    def in_place(self) -> dict[int, int]:
        """Returns the results that replace arguments that the step donates. Where it does not, they
        are written beside them, and nothing has to be copied before it is overwritten."""
        return {
            r: argument for r, argument in self.feedback.items() if argument in self.graph.donated
        }

    @property
    def inputs(self) -> tuple[int, ...]:
        """Returns the arguments, as the step numbers them."""
        return tuple(self.values[value] for value in self.graph.inputs)

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(self.values[value] for value in self.graph.outputs)


def extract_program(
    graph: Graph, blocks: Blocks, program: Program, feedback: Mapping[int, int]
) -> Extract:
    """Returns the program as a graph. `feedback` says which results of the step are its next
    arguments."""
    equations = [graph.equations[e] for e in program.equations]
    actual = program.aliases
    order = dict.fromkeys(program.inputs)
    for equation in equations:
        order.update(dict.fromkeys(actual.get(value, value) for value in equation.inputs))
        order.update(dict.fromkeys(equation.outputs))
    number = {value: i for i, value in enumerate(order)}
    place = {equation.index: i for i, equation in enumerate(equations)}
    own = _cut_graph(graph, program, equations, number, place)
    belongs = [block for block in blocks.blocks if any(seed in place for seed in block.seeds)]
    stored = {value for value in program.inputs if _parameter(graph, blocks, value)}
    inputs = {value: i for i, value in enumerate(program.inputs)}
    round_values = {graph.outputs[o]: graph.inputs[i] for o, i in feedback.items()}
    feedback = {
        position: inputs[round_values[value]]
        for position, value in enumerate(program.outputs)
        if round_values.get(value) in inputs
    }
    return Extract(
        own,
        _cut_blocks(blocks, belongs, number, place, frozenset(number[v] for v in stored)),
        tuple(order),
        program.equations,
        tuple(block.index for block in belongs),
        program.times,
        feedback,
        None if program.loop is None else _iteration(graph, program, program.loop),
    )


def _iteration(graph: Graph, program: Program, loop: int) -> Iteration:
    twins = {record.twin: record.index for record in graph.loops if record.twin is not None}
    arguments = {value: i for i, value in enumerate(program.inputs)}
    results = {value: i for i, value in enumerate(program.outputs)}
    carries: dict[int, int] = {}
    for one in (loop, twins.get(loop)):
        for enter, leave in graph.loops[one].carries if one is not None else ():
            first, last = graph.equations[enter].outputs[0], graph.equations[leave].inputs[0]
            if first in arguments and last in results:
                carries[arguments[first]] = results[last]
    inside = frozenset(i for v, i in arguments.items() if _inside(graph, v, loop))
    return Iteration(
        carries=carries,
        varies=inside - carries.keys(),
        sums=frozenset(
            i
            for i, result in carries.items()
            if loop not in twins and _made_by(graph, program.outputs[result]) is Role.BACKWARD
        ),
        kept=math.prod(graph.loops[one].length for one in graph.loop_path(loop) if one in twins),
    )


def _inside(graph: Graph, value: int, loop: int) -> bool:
    """Returns whether the value is made in the loop, or in its backward pass, or enters it
    there."""
    producer = graph.values[value].producer
    if producer is None:
        return False
    where = graph.equations[producer].loop
    if where is not None and graph.equations[producer].primitive in (LOOP_EXIT, LOOP_STACK):
        where = graph.loops[where].parent
    return loop in graph.loop_path(forward_loop(graph, where))


def _made_by(graph: Graph, value: int) -> Role | None:
    producer = graph.values[value].producer
    return None if producer is None else graph.equations[producer].role


def _cut_graph(
    graph: Graph,
    program: Program,
    equations: list[Equation],
    number: Mapping[int, int],
    place: Mapping[int, int],
) -> Graph:
    actual = program.aliases
    donated = {graph.inputs[position] for position in graph.donated}
    new = [
        replace(
            equation,
            index=place[equation.index],
            inputs=tuple(number[actual.get(value, value)] for value in equation.inputs),
            outputs=tuple(number[value] for value in equation.outputs),
            loop=None,
        )
        for equation in equations
    ]
    readers: list[list[int]] = [[] for _ in number]
    for equation in new:
        for value in dict.fromkeys(equation.inputs):
            readers[value].append(equation.index)
    values = [
        Value(i, old.shape, old.dtype, None if old.producer is None else place.get(old.producer))
        for i, old in enumerate(graph.values[value] for value in number)
    ]
    inputs = tuple(number[value] for value in program.inputs)
    outputs = tuple(number[value] for value in program.outputs)
    return Graph(
        equations=tuple(new),
        values=tuple(values),
        inputs=inputs,
        outputs=outputs,
        input_paths=tuple(graph.describe(value) for value in program.inputs),
        output_paths=tuple(graph.describe(value) for value in program.outputs),
        donated=frozenset(i for i, value in enumerate(program.inputs) if value in donated),
        constants={
            number[value]: constant
            for value, constant in graph.constants.items()
            if value in number
        },
        loops=(),
        readers=tuple(tuple(found) for found in readers),
        returned=frozenset(outputs),
        in_tree=jax.tree.structure(inputs),
        out_tree=jax.tree.structure(outputs),
        calling=PLAIN,
        own_constraints=0,
        trace_s=0.0,
    )


def _cut_blocks(
    blocks: Blocks,
    belongs: list[Block],
    number: Mapping[int, int],
    place: Mapping[int, int],
    parameters: frozenset[int],
) -> Blocks:
    def known(indices: Iterable[int]) -> tuple[int, ...]:
        return tuple(place[e] for e in indices if e in place)

    new_index = {block.index: i for i, block in enumerate(belongs)}
    new = [
        replace(
            block,
            index=new_index[block.index],
            seeds=known(block.seeds),
            members=known(block.members),
            prologue=known(block.prologue),
            backward=known(block.backward),
            candidates=tuple(_cut_candidate(c, place) for c in block.candidates),
            splits={number[v]: dims for v, dims in block.splits.items() if v in number},
            inputs_from=tuple(new_index[b] for b in block.inputs_from if b in new_index),
            loop=None,
            rows=tuple(
                replace(rows, dims={number[v]: dim for v, dim in rows.dims.items() if v in number})
                for rows in block.rows
            ),
        )
        for block in belongs
    ]
    same = blocks.recomputed.same
    return Blocks(
        blocks=tuple(new),
        home={
            place[e]: new_index[b] for e, b in blocks.home.items() if e in place and b in new_index
        },
        matched={
            place[e]: place[f] for e, f in blocks.matched.items() if e in place and f in place
        },
        recomputed=Recomputed(
            {number[a]: number[b] for a, b in same.items() if a in number and b in number},
            frozenset(known(blocks.recomputed.equations)),
        ),
        sources={
            number[v]: frozenset(new_index[b] for b in found if b in new_index)
            for v, found in blocks.sources.items()
            if v in number
        },
        parameters=parameters,
        mesh_shape=blocks.mesh_shape,
    )


def _cut_candidate(candidate: Candidate, place: Mapping[int, int]) -> Candidate:
    seeds = {place[e]: split for e, split in candidate.seeds.items() if e in place}
    return replace(candidate, seeds=seeds)


def _parameter(graph: Graph, blocks: Blocks, value: int) -> bool:
    """Returns whether a value is a parameter, or one layer's slice of a stacked one."""
    producer = graph.values[value].producer
    if producer is None:
        return value in blocks.parameters
    equation = graph.equations[producer]
    return equation.primitive == LOOP_SLICE and _parameter(graph, blocks, equation.inputs[0])
