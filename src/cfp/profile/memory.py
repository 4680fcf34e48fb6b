"""What the memory of a segment is for, on one device.

The compiler says how much a program needs in all; which tensors those are follows from the graph
and the layouts, as far as the total goes: a gradient that is summed straight into its parameter
needs no place of its own. Over a step parameters and optimizer state add up, and so do activations
(what the forward pass keeps for the backward pass) up to a point and gradients from there on
(`cfp.search.peak`); scratch, the rest, is needed by one segment at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from cfp.layouts import Layout, Layouts, local_shape, whole
from cfp.profile.job import Memory
from cfp.segments.extract import Extract
from cfp.trace import Role


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
        """Two programs of one segment: all adds up but scratch, of which the larger counts."""
        summed = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        summed["scratch_bytes"] = max(self.scratch_bytes, other.scratch_bytes)
        summed["total_bytes"] = max(self.total_bytes, other.total_bytes)
        return MemoryUse(**summed)

    @property
    def stored_bytes(self) -> int:
        """What is there before and after the step."""
        return self.parameter_bytes + self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """All but scratch."""
        return self.stored_bytes + self.gradient_bytes + self.activation_bytes


def memory_use(cut: Extract, layouts: Layouts, memory: Memory) -> MemoryUse:
    """Tells the compiler's total apart. Of a loop's body, activations count once per trip."""
    graph = cut.graph
    shape = cut.blocks.mesh_shape
    lie: dict[int, Layout] = {**layouts.known, **layouts.values}
    lie.update(zip(graph.inputs, layouts.inputs, strict=True))

    def size(values: Iterable[int]) -> int:
        return sum(
            math.prod(local_shape(lie.get(v, whole(len(shape))), graph.values[v].shape, shape))
            * int(graph.values[v].dtype.itemsize)
            for v in values
        )

    inputs = set(graph.inputs)
    parameters = inputs & cut.blocks.parameters
    round_values = {graph.inputs[position] for position in cut.goes_round.values()}
    state = round_values - parameters
    kept: set[int] = set()
    gradients: set[int] = set()
    for equation in graph.equations:
        for value in equation.inputs:
            producer = graph.values[value].producer
            made = None if producer is None else graph.equations[producer].role
            known = value in parameters or value in state or not graph.values[value].shape
            if known or value in graph.constants:
                continue
            if equation.role is Role.BACKWARD and made is Role.FORWARD:
                kept.add(value)
            elif equation.role is Role.UPDATE and (made is Role.BACKWARD or value in inputs):
                gradients.add(value)
    kept |= {v for v in inputs - parameters - state if _needed_later(cut, v)}
    fixed = size(parameters) + size(state)
    # what the compiler fuses away is not there: no part is more than is left of the total
    activations = min(size(kept), max(memory.total_bytes - fixed, 0))
    summed = min(size(gradients), max(memory.total_bytes - fixed - activations, 0))
    return MemoryUse(
        parameter_bytes=size(parameters),
        state_bytes=size(state),
        gradient_bytes=summed,
        activation_bytes=activations * cut.times,
        scratch_bytes=max(memory.total_bytes - fixed - activations - summed, 0),
        total_bytes=memory.total_bytes,
    )


def _needed_later(cut: Extract, value: int) -> bool:
    """An incoming activation that the backward pass reads again."""
    roles = {cut.graph.equations[reader].role for reader in cut.graph.readers[value]}
    return Role.FORWARD in roles and Role.BACKWARD in roles


def one_of_two(both: MemoryUse, alone: MemoryUse | None) -> MemoryUse:
    """What one of two in a row needs. Differentiating the second, the activations of both are
    there; differentiating the first, the gradients of both. So two need, beside what is stored,

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
