"""Intervals of numbers, and tensors as lanes of them.

Every tensor of numbers lies in closed intervals [low, high], its lanes: one for all of it, or one
for each position of its last dim, as the coordinates of index vectors reach differently far. A lane
is None where anything is possible: no rule knows the operation, or its integers may wrap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

LANES = 8  # a last dim of more positions is not one of coordinates


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers in [low, high]; of an `iota`, all of them."""

    low: float
    high: float
    iota: bool = False

    def within(self, other: Span) -> bool:
        return other.low <= self.low and self.high <= other.high

    def join(self, other: Span) -> Span:
        return Span(min(self.low, other.low), max(self.high, other.high))


Lane = Span | None
Lanes = tuple[Lane, ...]
ANYTHING: Lanes = (None,)


@dataclass(frozen=True, slots=True)
class Operation:
    """A primitive with its parameters and shapes, of a graph or of a jaxpr inside one."""

    primitive: str
    params: Mapping[str, Any]
    in_shapes: Sequence[tuple[int, ...]]
    out_shapes: Sequence[tuple[int, ...]]
    out_dtypes: Sequence[Any]


def constant(array: Any) -> Lanes:
    """Returns the lanes of an array whose values are known."""
    try:
        array = np.asarray(array)
    except TypeError:  # a typed PRNG key is not a number
        return ANYTHING
    if not array.size or array.dtype.kind not in "biuf":
        return ANYTHING
    each = array.ndim > 0 and array.shape[-1] <= LANES
    flat = array.reshape(-1, array.shape[-1]).T if each else array.reshape(1, -1)
    return tuple(Span(lane.min().item(), lane.max().item()) for lane in flat)


def limits(dtype: Any) -> Span:
    """Returns what an integer type can hold."""
    info: Any = jnp.iinfo
    return Span(int(info(dtype).min), int(info(dtype).max))


def fitted(lanes: Lanes, shape: tuple[int, ...], dtype: Any) -> Lanes:
    """Returns as many lanes as the last dim has positions, with nothing that the type cannot
    hold."""
    if len(lanes) > 1 and (not shape or shape[-1] != len(lanes)):
        lanes = joined(lanes)
    if jnp.issubdtype(dtype, np.integer):
        whole = limits(dtype)
        return tuple(lane if lane is not None and lane.within(whole) else None for lane in lanes)
    return lanes


def aligned(*operands: Lanes) -> list[Lanes]:
    """Returns the operands with as many lanes each."""
    count = max(map(len, operands))
    if any(len(lanes) not in (1, count) for lanes in operands):
        return [joined(lanes) for lanes in operands]
    return [lanes if len(lanes) == count else lanes * count for lanes in operands]


def joined(lanes: Iterable[Lane]) -> Lanes:
    """Returns one lane for all."""
    found: Lane = None
    for i, lane in enumerate(lanes):
        if lane is None:
            return ANYTHING
        found = lane if i == 0 or found is None else found.join(lane)
    return (found,)
