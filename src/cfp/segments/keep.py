"""What a segment keeps for its backward pass, and so what it computes again there.

as written     what the step keeps as it is: everything, except where its author wrote
               `jax.checkpoint`
all            everything: what `jax.checkpoint` would compute again is read from the forward pass
contractions   what comes in, and the results of contractions
inputs         what comes in

The rest is computed again, from what is kept, when the segment's cotangent has arrived
(`cfp.trace.recomputation`). In hand-written JAX the last two are `jax.checkpoint` around the
segment, with the policies `dots_saveable` and `nothing_saveable`.

A value that `jax.checkpoint` computes again stands for the forward value it repeats where it is
made by the same operations from the same values (`_twins`); else it is computed as the step says.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence

from cfp.blocks import Blocks
from cfp.blocks.build import is_contraction
from cfp.trace import Equation, Graph, Role
from cfp.trace.recomputation import Operand, Recomputation, Result, redirect


class Keep(enum.Enum):
    """What a segment keeps for its backward pass."""

    AS_WRITTEN = "as written"
    ALL = "all"
    CONTRACTIONS = "contractions"
    INPUTS = "inputs"


def recomputation(graph: Graph, blocks: Blocks, keep: Keep) -> Recomputation | None:
    """Returns what a program without loops computes again so that it keeps no more than `keep`
    says; None where that is what it does as it is written."""
    if keep is Keep.AS_WRITTEN:
        return None
    twins = _twins(graph, blocks.recomputed.same)
    reads = _residuals(graph, twins)
    renamed = {at: made for at, made in reads.items() if _value(graph, at) != _made(graph, made)}
    if renamed:  # what only the step's own recomputation read is not read any more
        found = redirect(graph, [Recomputation((), renamed, frozenset(), frozenset(), None)])
        reads = {at: made for at, made in reads.items() if found.runs(at[0])}
    again = _again(graph, reads, _kept(graph, blocks, keep))
    if not again:
        renamed = {at: made for at, made in reads.items() if at in renamed}
        return Recomputation((), renamed, frozenset(), frozenset(), None) if renamed else None
    needs = {value for e in again for value in graph.equations[e].inputs}
    incoming = needs.intersection(graph.inputs) | blocks.parameters
    backward = list(graph.role(Role.BACKWARD))
    return Recomputation(
        equations=again,
        reads=reads,
        incoming=frozenset(_operands(backward, incoming)),
        parameters=frozenset(_operands(graph.equations, blocks.parameters)),
        after=_cotangent(graph, blocks, backward),
    )


def levels(graph: Graph, blocks: Blocks) -> dict[Keep, Recomputation]:
    """Returns what there is to choose from besides the program as it is written, those that keep
    most first; of levels that compute the same again, the first."""
    found: dict[Keep, Recomputation] = {}
    for keep in (Keep.ALL, Keep.CONTRACTIONS, Keep.INPUTS):
        one = recomputation(graph, blocks, keep)
        if one is not None and one not in found.values():
            found[keep] = one
    return found


def held_values(graph: Graph, again: Sequence[Recomputation]) -> set[int]:
    """Returns the values of a program that its backward pass reads and its forward pass made or
    took in, as they are kept from the one to the other."""
    found = redirect(graph, again)
    kept = {one.value for group in found.groups for one in group.held}
    made = {value for group in found.groups for e in group.again for value in e.outputs}
    forward = {value for equation in graph.role(Role.FORWARD) for value in equation.outputs}
    entering = {value for equation in graph.role(Role.FORWARD) for value in equation.inputs}
    entering &= {*graph.inputs}
    for equation in graph.role(Role.BACKWARD):
        for i, value in enumerate(equation.inputs):
            if found.runs(equation.index) and (equation.index, i) not in found.reads:
                kept.add(value)
    return kept & (forward | entering) - made


def _twins(graph: Graph, same: Mapping[int, int]) -> dict[int, int]:
    """Returns a dict: value of the backward pass -> the forward value that has the same bits.
    `same` has more, which only resemble one another."""
    twins: dict[int, int] = {}
    for equation in graph.role(Role.BACKWARD):
        inputs = tuple(twins.get(value, value) for value in equation.inputs)
        if equation.primitive == "optimization_barrier" and equation.recomputed:
            twins |= dict(zip(equation.outputs, inputs, strict=True))
            continue
        known = [same.get(value) for value in equation.outputs]
        producer = None if None in known or not known else graph.values[known[0] or 0].producer
        if producer is None:
            continue
        other = graph.equations[producer]
        if other.op is equation.op and other.inputs == inputs and list(other.outputs) == known:
            twins |= dict(zip(equation.outputs, other.outputs, strict=True))
    return twins


def _residuals(graph: Graph, twins: Mapping[int, int]) -> dict[Operand, Result]:
    """Returns the operands of the backward pass that read what the forward pass made, or repeat
    it."""
    found: dict[Operand, Result] = {}
    for equation in graph.role(Role.BACKWARD):
        for i, value in enumerate(equation.inputs):
            made = twins.get(value, value)
            producer = graph.values[made].producer
            if producer is not None and graph.equations[producer].role is Role.FORWARD:
                result = graph.equations[producer].outputs.index(made)
                found[equation.index, i] = producer, result
    return found


def _kept(graph: Graph, blocks: Blocks, keep: Keep) -> set[int]:
    """Returns the forward equations whose results are kept: those of the level, and what must not
    run twice."""
    if keep is Keep.ALL:
        return {equation.index for equation in graph.role(Role.FORWARD)}
    seeds = {seed for block in blocks.blocks for seed in block.seeds}
    return {
        equation.index
        for equation in graph.role(Role.FORWARD)
        if equation.origin.effects
        or (keep is Keep.CONTRACTIONS and is_contraction(equation, seeds))
    }


def _again(graph: Graph, reads: Mapping[Operand, Result], kept: set[int]) -> tuple[int, ...]:
    """Returns the forward equations that make what is read and not kept, and all they need."""
    again: set[int] = set()
    todo = [maker for maker, _ in reads.values()]
    while todo:
        equation = graph.equations[todo.pop()]
        if equation.index in again or equation.index in kept or equation.role is not Role.FORWARD:
            continue
        again.add(equation.index)
        makers = (graph.values[value].producer for value in equation.inputs)
        todo += [maker for maker in makers if maker is not None]
    return tuple(sorted(again))


def _cotangent(graph: Graph, blocks: Blocks, backward: list[Equation]) -> Operand | None:
    """Returns where the backward pass first reads a tensor that comes in for it alone."""
    forward = {value for equation in graph.role(Role.FORWARD) for value in equation.inputs}
    comes = {v for v in graph.inputs if v not in forward and graph.values[v].shape}
    comes -= blocks.parameters
    return next(iter(_operands(backward, comes)), None)


def _operands(equations: Iterable[Equation], values: Collection[int]) -> list[Operand]:
    return [
        (equation.index, i)
        for equation in equations
        for i, value in enumerate(equation.inputs)
        if value in values
    ]


def _value(graph: Graph, operand: Operand) -> int:
    return graph.equations[operand[0]].inputs[operand[1]]


def _made(graph: Graph, result: Result) -> int:
    return graph.equations[result[0]].outputs[result[1]]
