"""What the memory of a segment is for, on one device.

The compiler says how much a program needs in all; which tensors those are follows from the graph
and the layouts, as far as the total goes: a gradient that is summed straight into its parameter
needs no place of its own. Over a step parameters, optimizer state, gradients and activations (what
the forward pass keeps for the backward pass) add up; scratch, the rest, is needed by one segment at
a time.
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
    """Bytes on one device; `total_bytes` is the compiler's figure for the program alone, or what of
    its figure for two in a row one needs."""

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

    def half(self) -> MemoryUse:
        """One of two segments that a program holds; scratch is still that of one at a time."""
        halves = {f.name: getattr(self, f.name) // 2 for f in fields(self)}
        halves["scratch_bytes"] = self.scratch_bytes
        halves["total_bytes"] = self.kept_bytes // 2 + self.scratch_bytes
        return MemoryUse(**halves)

    def beside(self, one: MemoryUse) -> MemoryUse:
        """Half of two in a row, given what one alone needs: what one more adds is kept, and what is
        there once is scratch. The graph says what is kept at most; the compiler may keep less."""
        stored = self.parameter_bytes + self.state_bytes
        alone = max(one.total_bytes - one.parameter_bytes - one.state_bytes, 0)
        both = max(2 * (self.total_bytes - stored) - self.scratch_bytes, 0)
        adds = min(max(both - alone, 0), both)
        gradients = min(self.gradient_bytes, adds)
        return MemoryUse(
            parameter_bytes=self.parameter_bytes,
            state_bytes=self.state_bytes,
            gradient_bytes=gradients,
            activation_bytes=adds - gradients,
            scratch_bytes=max(2 * alone - both, 0),
            total_bytes=self.total_bytes,
        )

    @property
    def kept_bytes(self) -> int:
        """What adds up over segments."""
        kept = self.parameter_bytes + self.state_bytes
        return kept + self.gradient_bytes + self.activation_bytes


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
