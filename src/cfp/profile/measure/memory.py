"""The memory model: what one device holds, segment by segment and at the peak of the step.

The compiler says how much a program needs in all; which tensors those are follows from the graph
and the layouts, as far as the total goes (`memory_use`): a gradient that is summed straight into
its parameter needs no place of its own.

    total = parameters + optimizer state + activations + gradients + scratch

Activations are what the forward pass keeps for the backward pass, and scratch is the rest. Over the
step (`needs_of`) parameters and optimizer state are stored all the time; what the step does not
donate is there twice, the old and the new values, and an argument that several segments read counts
where it is at home. The forward pass goes through the segments in order, the backward pass back.
While segment i is differentiated, activations are still there up to i, and gradients are there
already from i on (`peak_bytes`):

    M_i = Σ stored + Σ_(j <= i) activations_j + Σ_(j >= i) gradients_j + scratch_i
    M   = max(max_i M_i, Σ (stored + renewed))

where `renewed` is new training state that is there only after all of that: where micro-batches are
looped over, the update runs when the loop is done, and may use the place of its activations.

The search wants one sum and one maximum (`kept_and_scratch`). Bounds over the options tell which
segments are never at the peak, whatever is chosen (`places`). Before all that may be, activations
count; after them, gradients; among them the larger of the two, and the smaller one is needed by one
at a time, like scratch. So M is never more than

    Σ (stored_j + counted_j) + max_i (activations_i + gradients_i + scratch_i - counted_i)

also where `renewed` counts in place of a smaller `counted`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from cfp.layouts import Layout, Layouts, local_shape, whole
from cfp.profile.programs.boundary import Boundary, Crossing, End
from cfp.profile.programs.kinds import Kind
from cfp.profile.programs.lower import carried, sliced
from cfp.profile.runners.job import Memory
from cfp.segments.extract import Extract
from cfp.segments.keep import held_values
from cfp.trace import Role

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on one device; `total_bytes` is the compiler's figure for the program alone, or what
    one needs by its figure for two in a row."""

    parameter_bytes: int
    state_bytes: int
    gradient_bytes: int
    activation_bytes: int
    scratch_bytes: int
    total_bytes: int

    def plus(self, other: MemoryUse) -> MemoryUse:
        """Returns the use of two programs of one segment: all adds up but scratch, of which the
        larger counts."""
        summed = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        summed["scratch_bytes"] = max(self.scratch_bytes, other.scratch_bytes)
        summed["total_bytes"] = max(self.total_bytes, other.total_bytes)
        return MemoryUse(**summed)

    @property
    def stored_bytes(self) -> int:
        """Returns what is there before and after the step."""
        return self.parameter_bytes + self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """Returns all bytes but scratch."""
        return self.stored_bytes + self.gradient_bytes + self.activation_bytes


def memory_use(
    cut: Extract, layouts: Layouts, memory: Memory, elsewhere: Collection[int] = ()
) -> MemoryUse:
    """Tells the compiler's total apart. Activations of a loop's body count once for every iteration
    that keeps them. The arguments `elsewhere`, by position, are parameters that another program of
    the segment has too, or stacks of these: they count there."""
    graph = cut.graph
    inputs = set(graph.inputs)
    parameters, state = _stored(cut)

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
    fixed = size(parameters) + size(state)
    total = max(memory.total_bytes - _of_the_loop(cut, layouts), 0)
    # what the compiler fuses away is not there: no part is more than is left of the total
    activations = min(held_bytes(cut, layouts), max(total - fixed, 0))
    summed = min(size(gradients), max(total - fixed - activations, 0))
    return MemoryUse(
        parameter_bytes=size(parameters - {graph.inputs[position] for position in elsewhere}),
        state_bytes=size(state),
        gradient_bytes=summed,
        activation_bytes=activations * (1 if cut.iteration is None else cut.iteration.kept),
        scratch_bytes=max(total - fixed - activations - summed, 0),
        total_bytes=total,
    )


def held_bytes(cut: Extract, layouts: Layouts) -> int:
    """Returns what one device keeps from a program's forward pass to its backward pass, at most:
    the compiler may fuse some of it away."""
    parameters, state = _stored(cut)
    values = cut.graph.values
    held = held_values(cut.graph, layouts.again) - parameters - state - cut.graph.constants.keys()
    return _size(cut, layouts, (v for v in held if values[v].shape))


def _stored(cut: Extract) -> tuple[set[int], set[int]]:
    """Returns the parameters among a program's arguments, and the rest of its training state."""
    parameters = {*cut.graph.inputs} & cut.blocks.parameters
    rounds = {cut.graph.inputs[position] for position in cut.feedback.values()}
    return parameters, rounds - parameters


def _size(cut: Extract, layouts: Layouts, values: Iterable[int]) -> int:
    graph, shape = cut.graph, cut.blocks.mesh_shape
    lie: dict[int, Layout] = {**layouts.known, **layouts.values}
    lie.update(zip(graph.inputs, layouts.inputs, strict=True))
    return sum(
        math.prod(local_shape(lie.get(v, whole(len(shape))), graph.values[v].shape, shape))
        * int(graph.values[v].dtype.itemsize)
        for v in values
    )


def _of_the_loop(cut: Extract, layouts: Layouts) -> int:
    """Returns the bytes of a measured loop's arguments and results that one iteration of the step's
    loop does not need: the slices of the other iterations; a carried result, which takes the place
    of its argument; and sums of gradients, which count where the update reads them."""
    if cut.iteration is None:
        return 0
    graph, shape = cut.graph, cut.blocks.mesh_shape
    carries = carried(cut, layouts)

    def size(value: int, layout: Layout) -> int:
        local = math.prod(local_shape(layout, graph.values[value].shape, shape))
        return local * int(graph.values[value].dtype.itemsize)

    arguments = [size(v, lie) for v, lie in zip(graph.inputs, layouts.inputs, strict=True)]
    results = [size(v, lie) for v, lie in zip(graph.outputs, layouts.outputs, strict=True)]
    in_place = set(carries.values())
    others = sum(arguments[i] for i in sliced(cut, layouts))
    others += sum(size for i, size in enumerate(results) if i not in in_place)
    sums = sum(arguments[i] for i in cut.iteration.sums)
    return (cut.iterations - 1) * others + sum(results[i] for i in in_place) + sums


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


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Bytes of a segment, by option. What is `stored` is there all the time, what is `renewed` only
    when all segments are differentiated."""

    stored: Numbers
    activations: Numbers
    gradients: Numbers
    scratch: Numbers
    renewed: Numbers


Measured = tuple[MemoryUse, Sequence[Layouts]]  # what an option uses, and how its programs lie


def shared_arguments(crossings: Iterable[Crossing]) -> dict[int, tuple[Boundary, ...]]:
    """Returns, by segment, the arguments of the step that it reads and another is the home of."""
    found: dict[int, tuple[Boundary, ...]] = {}
    for crossing in crossings:
        if crossing.source != crossing.target and crossing.boundary.what == "argument":
            found[crossing.target] = (*found.get(crossing.target, ()), crossing.boundary)
    return found


def needs_of(
    kind: Kind,
    options: Sequence[Measured],
    *,
    donated: Collection[int],
    shared: Sequence[Boundary],
    mesh_shape: tuple[int, ...],
) -> Needs:
    """Returns what a segment needs in a step that donates the values `donated`; the arguments
    `shared` are at home in other segments."""
    uses = [use for use, _ in options]
    activations = np.array([use.activation_bytes for use in uses], dtype=np.int64)
    gradients = np.array([use.gradient_bytes for use in uses], dtype=np.int64)
    ends = [
        (End(kind.index, number, at, result=False), cut.graph.values[cut.graph.inputs[at]])
        for number, cut in enumerate(kind.extracts)
        for at in cut.feedback.values()
        if cut.inputs[at] not in donated
    ]
    stored = np.array(
        [
            use.stored_bytes
            - sum(_local_bytes(b.target, b.shape, b.dtype, lie, mesh_shape) for b in shared)
            for use, lie in options
        ],
        dtype=np.int64,
    )
    twice = np.array(
        [
            sum(_local_bytes(end, v.shape, str(v.dtype), lie, mesh_shape) for end, v in ends)
            for _, lie in options
        ],
        dtype=np.int64,
    )
    scratch = np.array([use.scratch_bytes for use in uses], dtype=np.int64)
    none = np.zeros_like(stored)
    iteration = kind.extracts[0].iteration
    if iteration is not None and iteration.kept < kind.extracts[0].times:
        # A loop over micro-batches holds the sums of the gradients from its start, and the update
        # comes after it.
        return Needs(stored + gradients, activations, none, scratch, renewed=twice)
    return Needs(stored + twice, activations, gradients, scratch, renewed=none)


def _local_bytes(
    end: End,
    shape: tuple[int, ...],
    dtype: str,
    layouts: Sequence[Layouts],
    mesh_shape: tuple[int, ...],
) -> int:
    local = local_shape(end.layout(layouts), shape, mesh_shape)
    return math.prod(local) * int(jnp.dtype(dtype).itemsize)


class PeakSide(Enum):
    """The place of a segment, seen from those that may be at the peak."""

    BEFORE = "before"
    AMONG = "among"
    AFTER = "after"


def peak_bytes(segments: Sequence[Needs], choice: Sequence[int]) -> int:
    """Returns M, exactly."""
    chosen = list(zip(segments, choice, strict=True))
    kept = sum(int(needs.stored[option] + needs.gradients[option]) for needs, option in chosen)
    most = sum(int(needs.stored[option] + needs.renewed[option]) for needs, option in chosen)
    for needs, option in chosen:
        kept += int(needs.activations[option])
        most = max(most, kept + int(needs.scratch[option]))
        kept -= int(needs.gradients[option])
    return most


def places(segments: Sequence[Needs]) -> list[PeakSide]:
    """Returns the place of each segment, in the order of the forward pass."""
    peaks = _peaks(segments)
    return [
        PeakSide.BEFORE if i < peaks[0] else PeakSide.AFTER if i > peaks[-1] else PeakSide.AMONG
        for i in range(len(segments))
    ]


def kept_and_scratch(needs: Needs, place: PeakSide) -> tuple[Numbers, Numbers]:
    """Returns what adds up over segments, and that of which only the largest counts."""
    if place is PeakSide.BEFORE:
        counted = needs.activations
    elif place is PeakSide.AFTER:
        counted = needs.gradients
    else:
        counted = np.maximum(needs.activations, needs.gradients)
    counted = np.maximum(counted, needs.renewed)
    if place is not PeakSide.AMONG:
        return needs.stored + counted, np.zeros_like(needs.scratch)
    rest = needs.activations + needs.gradients + needs.scratch - counted
    return needs.stored + counted, np.maximum(rest, 0)


def _peaks(segments: Sequence[Needs]) -> list[int]:
    """Returns all segments except those that another one exceeds for every choice; of equals the
    last. For k behind i

        M_k - M_i = (activations + scratch)_k - (gradients + scratch)_i
                    + Σ_(i < j < k) (activations - gradients)_j

    is at least the sum of the least that each term can be. Likewise for k before i.
    """
    count = len(segments)
    rises = [int((s.activations - s.gradients).min()) for s in segments]
    falls = [int((s.gradients - s.activations).min()) for s in segments]
    forward = [s.activations + s.scratch for s in segments]
    backward = [s.gradients + s.scratch for s in segments]
    risen = np.cumsum([0, *rises])  # risen[i] is of all before i
    fallen = np.cumsum([0, *falls])
    behind = np.array([int(forward[k].min()) for k in range(count)]) + risen[:-1]
    before = np.array([int(backward[k].min()) for k in range(count)]) - fallen[1:]
    behind = np.maximum.accumulate(behind[::-1])[::-1]
    before = np.maximum.accumulate(before)
    return [
        i
        for i in range(count)
        if not (i + 1 < count and behind[i + 1] >= int(backward[i].max()) + risen[i + 1])
        and not (i and before[i - 1] > int(forward[i].max()) - fallen[i])
    ]
