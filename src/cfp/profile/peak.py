"""The memory model, second half: what one device holds at the peak of the step.

Parameters and optimizer state are stored all the time (`needs_of`); what the step does not donate
is there twice, the old and the new values, and an argument that several segments read counts where
it is at home; what no segment reads counts besides (`besides_bytes`). The forward pass goes through
the segments in order, the backward pass back. While segment i is differentiated, activations are
still there up to i, and gradients are there already from i on (`peak_bytes`):

    M_i = Σ stored + Σ_(j <= i) activations_j + Σ_(j >= i) gradients_j + scratch_i
    M   = max(max_i M_i, Σ (stored + renewed))

where `renewed` is new training state that is there only after all of that: where micro-batches are
looped over, the update runs when the loop is done, and may use the place of its activations.

An update of donated state copies what it overwrites and still reads. These copies need nothing of
the backward pass, and XLA on CPUs was seen to make them first: what a loop's update needs counts
all the time, which is too much where these are tensors that it gathers.

The search wants one sum and one maximum (`kept_and_scratch`). Bounds over the options tell which
segments are never at the peak, whatever is chosen (`places`). Before all that may be, activations
count; after them, gradients; among them the larger of the two, and the smaller one is needed by one
at a time, like scratch. So M is never more than

    Σ (stored_j + counted_j) + max_i (activations_i + gradients_i + scratch_i - counted_i)

also where `renewed` counts in place of a smaller `counted`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.layouts import Layouts, local_shape
from cfp.profile.measure.memory import MemoryUse
from cfp.profile.programs.boundary import Boundary, Crossing, End
from cfp.profile.programs.kinds import Kind
from cfp.trace import is_key

Numbers = NDArray[np.int64]


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


def besides_bytes(analysis: Analysis, homes: Container[int]) -> int:
    """Returns what those arguments take that no segment's program has, as the state of an optimizer
    that sums gradients of several segments. They lie whole, and twice where the step renews them
    without donating them."""
    graph = analysis.graph
    pairs = find_feedback(graph, analysis.grouping.parameters)
    renewed = {*pairs.values()} - graph.donated
    total = 0
    for position, value in enumerate(graph.inputs):
        found = graph.values[value]
        if value not in homes and found.shape and not is_key(found.dtype):
            times = 2 if position in renewed else 1
            total += times * math.prod(found.shape) * int(found.dtype.itemsize)
    return total


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
    update = np.array([use.update_bytes for use in uses], dtype=np.int64)
    if ends:  # nothing is overwritten, so the update needs them when it runs
        twice += update
    else:
        stored += update
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
