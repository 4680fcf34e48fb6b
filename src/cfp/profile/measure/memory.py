"""The memory model, first half: what one device holds for one segment, and what that is for.

The compiler says how much a program needs: arguments, results and temporaries. Its results are not
counted: in the step each of them is read by a neighbour or by the update, and counts there as an
activation, a cotangent or a gradient, or it takes the place of an argument. Which tensors the rest
is follows from the graph and the layouts, as far as the total goes (`memory_use`): a gradient that
is summed straight into its parameter needs no place of its own.

    total = arguments + temporaries
          = parameters + optimizer state + activations + gradients + scratch + update

Activations are what the forward pass keeps for the backward pass (`held_bytes`), and scratch is the
rest. Where layers are looped over, the update is a program of its own, and `update` is what it
needs beside its arguments.

A segment that follows itself is measured as two in a row, and also alone where memory may decide
(`one_of_two`). `profile.peak` is the second half: what the segments of a step need together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields

from cfp.layouts import Layout, Layouts, local_shape, whole
from cfp.profile.programs.lower import sliced
from cfp.profile.runners.job import Memory
from cfp.segments.extract import Extract
from cfp.segments.keep import held_values
from cfp.trace import Graph, Role
from cfp.trace.recomputation import redirect

# A compiler makes these again wherever they are read: what is kept is what they are made of.
SPREAD = frozenset({"broadcast_in_dim", "iota"})
ADDS_ROWS = "scatter-add"  # what a lookup becomes in the backward pass


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on one device; `total_bytes` is the compiler's figure for the program alone without its
    results, or what one needs by its figure for two in a row. `update_bytes` are the temporaries of
    a loop's update."""

    parameter_bytes: int
    state_bytes: int
    gradient_bytes: int
    activation_bytes: int
    scratch_bytes: int
    total_bytes: int
    update_bytes: int = 0

    def around(self, inner: MemoryUse) -> MemoryUse:
        """Returns the use of a loop's body, `inner`, and of this, which runs around it: all adds up
        but scratch, of which the larger counts. What runs around the loop keeps things for the
        time before the loop is differentiated, or after that: they count like its scratch."""
        summed = {f.name: getattr(self, f.name) + getattr(inner, f.name) for f in fields(self)}
        summed["activation_bytes"] = inner.activation_bytes
        summed["scratch_bytes"] = max(
            self.activation_bytes + self.scratch_bytes, inner.scratch_bytes
        )
        summed["total_bytes"] = max(self.total_bytes, inner.total_bytes)
        return MemoryUse(**summed)

    @property
    def stored_bytes(self) -> int:
        """Returns what is there before and after the step."""
        return self.parameter_bytes + self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """Returns all bytes but scratch."""
        return self.stored_bytes + self.gradient_bytes + self.activation_bytes + self.update_bytes


def memory_use(
    cut: Extract, layouts: Layouts, memory: Memory, elsewhere: Collection[int] = ()
) -> MemoryUse:
    """Tells the compiler's total apart. Activations of a loop's body count once for every iteration
    that keeps them. The arguments `elsewhere`, by position, are parameters that another program of
    the segment has too, or stacks of these: they count there."""
    graph = cut.graph
    inputs = set(graph.inputs)
    parameters, state = _stored(cut)
    parameter_bytes, state_bytes = stored_bytes(cut, layouts, elsewhere)

    def size(values: Iterable[int]) -> int:
        return _size(cut, layouts, values)

    gradients: set[int] = set()
    for equation in graph.role(Role.UPDATE):
        for value in equation.inputs:
            producer = graph.values[value].producer
            made = None if producer is None else graph.equations[producer].role
            if made is Role.BACKWARD or value in inputs:
                gradients.add(value)
    gradients = {v for v in gradients - parameters - state if graph.values[v].shape}
    fixed = sum(stored_bytes(cut, layouts))
    total = _own_bytes(cut, layouts, memory)
    # what the compiler fuses away is not there: no part is more than is left of the total
    activations = min(held_bytes(cut, layouts), max(total - fixed, 0))
    summed = min(size(gradients), max(total - fixed - activations, 0))
    started = min(size(started_sums(graph)), max(total - fixed - activations - summed, 0))
    scratch = max(total - fixed - activations - summed - started, 0)
    outside = cut.iteration is None and not cut.blocks.blocks  # it runs once, around a loop
    update = min(scratch, memory.temporary_bytes) if outside else 0
    return MemoryUse(
        parameter_bytes=parameter_bytes,
        state_bytes=state_bytes,
        gradient_bytes=summed,
        activation_bytes=activations * (1 if cut.iteration is None else cut.iteration.kept)
        + started,
        scratch_bytes=scratch - update,
        total_bytes=total,
        update_bytes=update,
    )


def held_bytes(cut: Extract, layouts: Layouts) -> int:
    """Returns what one device keeps from a program's forward pass to its backward pass, at most:
    the compiler may fuse some of it away. A parameter that both passes gather alike is gathered
    once: compilers merge equal collectives."""
    parameters, state = _stored(cut)
    graph = cut.graph
    away = parameters | state | graph.constants.keys()
    held: set[int] = set()
    todo = [*held_values(graph, layouts.again)]
    while todo:
        value = todo.pop()
        producer = graph.values[value].producer
        if producer is not None and graph.equations[producer].primitive in SPREAD:
            todo += graph.equations[producer].inputs
        elif graph.values[value].shape:
            held.add(value)
    return _size(cut, layouts, held - away) + _gathered_bytes(cut, layouts, parameters)


def started_sums(graph: Graph) -> set[int]:
    """Returns the tensors of constants that the backward pass adds rows to, as the gradient of a
    table starts with. They depend on nothing that the step computes, and XLA on CPUs was seen to
    make them at its start: they are there like activations."""
    found = set[int]()
    for equation in graph.role(Role.BACKWARD):
        made = graph.values[equation.inputs[0]].producer if equation.inputs else None
        if equation.primitive == ADDS_ROWS and made is not None:
            spread = graph.equations[made]
            if spread.primitive in SPREAD and graph.constants.keys() >= {*spread.inputs}:
                found.add(equation.inputs[0])
    return found


def _gathered_bytes(cut: Extract, layouts: Layouts, parameters: Collection[int]) -> int:
    """Returns the bytes of parameters that are gathered alike in both passes. What is computed
    again gathers its own, and so does a backward pass that is a loop of its own."""
    if cut.iteration is not None and cut.iteration.kept > 1:
        return 0
    graph = cut.graph
    again = redirect(graph, layouts.again).reads
    lie = dict(zip(graph.inputs, layouts.inputs, strict=True))
    read: dict[Role, set[tuple[int, Layout]]] = {role: set() for role in Role}
    for equation in graph.equations:
        for i, value in enumerate(equation.inputs):
            at = equation.index, i
            if value in parameters and at not in again:
                entry = layouts.entries.get(at)
                layout = layouts.uses.get(at) if entry is None else entry.layout
                if layout is not None and layout != lie[value]:
                    read[equation.role].add((value, layout))
    return sum(
        math.prod(local_shape(layout, graph.values[value].shape, cut.blocks.mesh_shape))
        * int(graph.values[value].dtype.itemsize)
        for value, layout in read[Role.FORWARD] & read[Role.BACKWARD]
    )


def stored_bytes(
    cut: Extract, layouts: Layouts, elsewhere: Collection[int] = ()
) -> tuple[int, int]:
    """Returns the bytes of the parameters among a program's arguments, but for those that are
    `elsewhere`, and of the rest of its training state."""
    parameters, state = _stored(cut)
    parameters -= {cut.graph.inputs[position] for position in elsewhere}
    return _size(cut, layouts, parameters), _size(cut, layouts, state)


def _stored(cut: Extract) -> tuple[set[int], set[int]]:
    """Returns the parameters among a program's arguments, and the rest of its training state."""
    parameters = {*cut.graph.inputs} & cut.blocks.parameters
    rounds = {cut.graph.inputs[position] for position in cut.feedback.values()}
    return parameters, rounds - parameters


def _size(cut: Extract, layouts: Layouts, values: Iterable[int]) -> int:
    graph, shape = cut.graph, cut.blocks.mesh_shape
    inputs = dict(zip(graph.inputs, layouts.inputs, strict=True))
    return sum(
        math.prod(
            local_shape(
                inputs[v] if v in inputs else _lies(graph, layouts, v) or whole(len(shape)),
                graph.values[v].shape,
                shape,
            )
        )
        * int(graph.values[v].dtype.itemsize)
        for v in values
    )


def _lies(graph: Graph, layouts: Layouts, value: int) -> Layout | None:
    """Returns how a tensor lies. Where the plan does not say, as of a mask of random numbers, a
    compiler makes it as it is read: like the tensors of its shape that it is combined with."""
    known = layouts.values.get(value) or layouts.known.get(value)
    if value in layouts.values or any(dim is not None for dim in known or ()):
        return known
    shape = graph.values[value].shape
    for reader in graph.readers[value]:
        equation = graph.equations[reader]
        for other in (*equation.outputs, *equation.inputs):
            if graph.values[other].shape == shape and other in layouts.values:
                return layouts.values[other]
    return known


def _own_bytes(cut: Extract, layouts: Layouts, memory: Memory) -> int:
    """Returns the arguments and temporaries of a program; of one iteration where it is a loop.

    A measured loop has the slices of all its iterations among its arguments, and the sums of
    gradients, which count at the update. Its temporaries hold copies of what it carries and stacks,
    which the step's loop does not make: one iteration needs no more temporaries than the tensors
    that it makes.
    """
    graph = cut.graph
    results = [_size(cut, layouts, [value]) for value in graph.outputs]
    handed_on = sum(size for i, size in enumerate(results) if i not in cut.feedback)
    if cut.iteration is None:
        return max(memory.total_bytes - handed_on, 0)
    arguments = [_size(cut, layouts, [value]) for value in graph.inputs]
    others = (cut.iterations - 1) * sum(arguments[i] for i in sliced(cut, layouts))
    others += sum(arguments[i] for i in cut.iteration.sums)  # these count at the update
    made = {value for equation in graph.equations for value in equation.outputs}
    temporary = min(memory.temporary_bytes, _size(cut, layouts, made - {*graph.outputs}))
    return max(memory.argument_bytes - others, 0) + temporary


def one_of_two(both: MemoryUse, alone: MemoryUse | None) -> MemoryUse:
    """Returns what one of two in a row needs. Differentiating the second, the activations of both
    are there; differentiating the first, the gradients of both. So two need, beside what is stored,

        activations + gradients + scratch + the larger of activations and gradients

    of one. The last is what two need more than one `alone`, where that was measured; the graph
    knows what is kept at most, and the compiler may keep less.
    """
    needs = max(both.total_bytes - both.stored_bytes, 0)
    activations, gradients = both.activation_bytes // 2, both.gradient_bytes // 2
    larger, smaller = max(activations, gradients), min(activations, gradients)
    if alone is None:
        scratch = max(needs - 2 * larger - smaller, 0)
    else:
        single = min(max(alone.total_bytes - alone.stored_bytes, 0), needs)
        larger = needs - single
        smaller = min(smaller, max(single - larger, 0))
        scratch = max(single - larger - smaller, 0)
    swapped = gradients > activations
    parameters, state = both.parameter_bytes // 2, both.state_bytes // 2
    return MemoryUse(
        parameter_bytes=parameters,
        state_bytes=state,
        gradient_bytes=larger if swapped else smaller,
        activation_bytes=smaller if swapped else larger,
        scratch_bytes=scratch,
        total_bytes=parameters + state + larger + smaller + scratch,
    )
