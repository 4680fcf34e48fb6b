"""What a backward pass computes again instead of keeping it, and where it reads that.

A `Recomputation` belongs to a part of the graph (a segment). It says nothing but equations and
operands, so it is carried to another graph by a correspondence of equations. `Redirects` works out
for one graph what it means there:

    again   forward equations that run a second time, in the backward pass, from what they read
    held    what these read that they do not make, and what the backward pass reads beside them:
            it is kept from the forward pass, and goes through a fence before it is read again
    stacks  a forward loop hands what is held to the backward loop as a stack of all iterations
    idle    equations whose results nobody reads any more: the stacks of what is not kept, and what
            the step itself recomputed (`jax.checkpoint`) where the forward pass's own is read now

Running an equation again gives the same bits: it is the same operation on the same values. Random
draws too, for their keys are values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cfp.trace.graph import LOOP_ENTER, LOOP_EXIT, LOOP_SLICE, LOOP_STACK, Equation, Graph

Operand = tuple[int, int]  # an equation, and the number of its operand
Result = tuple[int, int]  # an equation, and the number of its result


@dataclass(frozen=True, slots=True)
class Recomputation:
    """`equations` are forward equations that run again, in order. `reads` maps operands of the
    backward pass to the forward result that they read: computed again where its equation is among
    these, else as it was kept. `incoming` are operands of the backward pass that read what came
    in. `parameters` are operands that read a parameter. None of it runs before the cotangent is
    there that the operand `after` reads."""

    equations: tuple[int, ...]
    reads: Mapping[Operand, Result]
    incoming: frozenset[Operand]
    parameters: frozenset[Operand]
    after: Operand | None

    def at(self, equations: Sequence[int | None]) -> Recomputation:
        """Returns the same in a graph where equation i is `equations[i]`, None where it has no
        such equation."""

        def operands(some: Iterable[Operand]) -> frozenset[Operand]:
            found = ((equations[e], i) for e, i in some)
            return frozenset((e, i) for e, i in found if e is not None)

        reads = {
            (reader, i): (maker, result)
            for (e, i), (f, result) in self.reads.items()
            if (reader := equations[e]) is not None and (maker := equations[f]) is not None
        }
        again = [at for e in self.equations if (at := equations[e]) is not None]
        return Recomputation(
            tuple(sorted(again)),
            reads,
            operands(self.incoming),
            operands(self.parameters),
            next(iter(operands([] if self.after is None else [self.after])), None),
        )

    def to_json(self) -> list[object]:
        """Returns all of it in a stable order."""
        return [
            self.equations,
            sorted(self.reads.items()),
            sorted(self.incoming),
            self.after,
        ]


@dataclass(frozen=True, slots=True)
class Held:
    """A value that is kept, by an operand that reads it in the part that is computed again."""

    value: int
    operand: Operand
    parameter: bool


@dataclass(slots=True)
class RecomputationGroup:
    """A recomputation in a graph; `readers` are the operands that read it."""

    again: tuple[Equation, ...]
    held: list[Held]
    readers: list[Operand]
    after: Operand | None


@dataclass(slots=True)
class Redirects:
    """What recomputations mean in a graph. `reads` maps an operand to its group and to the value
    that it reads there. `stacks` are, by forward loop, values of which it makes a stack besides
    its own; `slices`, by backward loop, the values that it reads of stacks: value -> the stack,
    None for one of `stacks`."""

    groups: list[RecomputationGroup] = field(default_factory=list)
    reads: dict[Operand, tuple[int, int]] = field(default_factory=dict)
    stacks: dict[int, list[int]] = field(default_factory=dict)
    slices: dict[int, dict[int, int | None]] = field(default_factory=dict)
    live: frozenset[int] | None = None  # None: all

    def runs(self, equation: int) -> bool:
        return self.live is None or equation in self.live


def redirect(graph: Graph, recomputations: Sequence[Recomputation]) -> Redirects:
    """Returns what the recomputations mean in the graph."""
    found = Redirects()
    if recomputations:
        twins = {loop.twin: loop.index for loop in graph.loops if loop.twin is not None}
        for one in recomputations:
            _add(graph, found, one, twins)
        found.live = _live(graph, found)
    return found


def _add(graph: Graph, found: Redirects, one: Recomputation, twins: Mapping[int, int]) -> None:
    """Adds one recomputation. What its loop does not change is there anyway, and is left out."""
    makers = {*one.equations, *(maker for maker, _ in one.reads.values())}
    loops = {graph.equations[e].loop for e in makers}
    if not loops:
        return
    loop = max(loops, key=lambda inner: len(graph.loop_path(inner)))
    backward = None if loop is None else twins.get(loop)
    here = {loop if backward is None else backward}
    group = len(found.groups)
    again = tuple(graph.equations[e] for e in one.equations if graph.equations[e].loop == loop)
    made = {value for equation in again for value in equation.outputs}
    held: dict[int, Held] = {}
    readers: list[Operand] = []

    def hold(value: int, operand: Operand) -> None:
        if value not in made and value not in graph.constants:
            parameter = operand in one.parameters
            held.setdefault(value, Held(value, operand, parameter))

    for equation in again:
        for i, value in enumerate(equation.inputs):
            hold(value, (equation.index, i))
    for operand, (maker, result) in sorted(one.reads.items()):
        equation = graph.equations[maker]
        if graph.equations[operand[0]].loop in here and equation.loop == loop:
            value = equation.outputs[result]
            found.reads[operand] = group, value
            readers.append(operand)
            hold(value, operand)
    for operand in sorted(one.incoming) if again else ():
        reader = graph.equations[operand[0]]
        if reader.loop in here:
            value = _forward_of(graph, reader.inputs[operand[1]], loop, backward)
            found.reads[operand] = group, value
            readers.append(operand)
            hold(value, operand)
    after = one.after if again else None
    found.groups.append(RecomputationGroup(again, list(held.values()), readers, after))
    if loop is not None and backward is not None:
        _hand_over(graph, found, [one.value for one in held.values()], loop, backward)


def _forward_of(graph: Graph, value: int, loop: int | None, backward: int | None) -> int:
    """Returns the forward loop's own name of what its backward loop reads a slice of."""
    producer = graph.values[value].producer
    if producer is None or backward is None:
        return value
    sliced = graph.equations[producer]
    if sliced.loop != backward or sliced.primitive != LOOP_SLICE:
        return value
    (stack,) = sliced.inputs
    maker = graph.values[stack].producer
    if maker is not None and graph.equations[maker].loop == loop:
        return graph.equations[maker].inputs[0]
    for reader in graph.readers[stack]:
        if graph.equations[reader].primitive == LOOP_SLICE and graph.equations[reader].loop == loop:
            return graph.equations[reader].outputs[0]
    return value


def _hand_over(
    graph: Graph, found: Redirects, held: Sequence[int], loop: int, backward: int
) -> None:
    """Says which stacks the forward loop makes and the backward loop reads."""
    slices = found.slices.setdefault(backward, {})
    for value in held:
        producer = graph.values[value].producer
        maker = None if producer is None else graph.equations[producer]
        if maker is None or maker.loop != loop or maker.primitive in (LOOP_STACK, LOOP_EXIT):
            continue  # made outside of both loops, or by the backward loop itself
        if maker.primitive == LOOP_SLICE:
            slices[value] = maker.inputs[0]
            continue
        own = [graph.equations[reader] for reader in graph.readers[value]]
        stack = next((e.outputs[0] for e in own if e.primitive == LOOP_STACK), None)
        slices[value] = stack
        more = found.stacks.setdefault(loop, [])
        if stack is None and value not in more:
            more.append(value)


def _live(graph: Graph, found: Redirects) -> frozenset[int]:
    """Returns the equations whose results are read, or that have none. What is carried round a loop
    is left alone."""
    wanted = set(graph.outputs)
    for group in found.groups:
        wanted.update(one.value for one in group.held)
    for slices in found.slices.values():
        wanted.update(stack for stack in slices.values() if stack is not None)
    live: set[int] = set()
    for equation in reversed(graph.equations):
        carried = equation.primitive in (LOOP_ENTER, LOOP_EXIT)
        if equation.outputs and not carried and wanted.isdisjoint(equation.outputs):
            continue
        live.add(equation.index)
        for i, value in enumerate(equation.inputs):
            to = found.reads.get((equation.index, i))
            wanted.add(value if to is None else to[1])
    return frozenset(live)
