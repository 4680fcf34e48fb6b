"""When memory is needed: what of a segment adds up over the step, and what one at a time needs.

The forward pass goes through the segments in order, the backward pass back. While segment i is
differentiated, activations are still there up to i, and gradients are there already from i on:

    M_i = Σ stored + Σ_(j <= i) activations_j + Σ_(j >= i) gradients_j + scratch_i
    M   = max_i M_i

The search wants one sum and one maximum (`problem`). Bounds over the options tell which segments
are never at the peak, whatever is chosen. Before all that may be, activations count; after them,
gradients; among them the larger of the two, and the smaller one is needed by one at a time, like
scratch. So M is never more than

    Σ (stored_j + counted_j) + max_i (activations_i + gradients_i + scratch_i - counted_i)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from cfp.search.problem import Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Bytes of a segment, by option. What is `stored` is there all the time."""

    stored: Numbers
    activations: Numbers
    gradients: Numbers
    scratch: Numbers


class Place(Enum):
    """Of a segment, seen from those that may be at the peak."""

    BEFORE = "before"
    AMONG = "among"
    AFTER = "after"


def peak_bytes(segments: Sequence[Needs], choice: Sequence[int]) -> int:
    """M, exactly."""
    chosen = list(zip(segments, choice, strict=True))
    kept = sum(int(needs.stored[option] + needs.gradients[option]) for needs, option in chosen)
    most = 0
    for needs, option in chosen:
        kept += int(needs.activations[option])
        most = max(most, kept + int(needs.scratch[option]))
        kept -= int(needs.gradients[option])
    return most


def places(segments: Sequence[Needs]) -> list[Place]:
    """Of each segment, in the order of the forward pass."""
    peaks = _peaks(segments)
    return [
        Place.BEFORE if i < peaks[0] else Place.AFTER if i > peaks[-1] else Place.AMONG
        for i in range(len(segments))
    ]


def kept_and_scratch(needs: Needs, place: Place) -> tuple[Numbers, Numbers]:
    """What adds up over segments, and that of which the largest counts."""
    if place is Place.BEFORE:
        return needs.stored + needs.activations, np.zeros_like(needs.scratch)
    if place is Place.AFTER:
        return needs.stored + needs.gradients, np.zeros_like(needs.scratch)
    larger = np.maximum(needs.activations, needs.gradients)
    smaller = np.minimum(needs.activations, needs.gradients)
    return needs.stored + larger, needs.scratch + smaller


def _peaks(segments: Sequence[Needs]) -> list[int]:
    """All but those that another one exceeds for every choice; of equals the last. For k behind i

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
