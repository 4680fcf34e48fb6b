"""Sensible values for a program's inputs: finite, of the right kind, and inside what they index.

Integers that end up as positions of a lookup, of any type and by any arithmetic, stay within what
they look up in (`cfp.segments.ranges`); other integers (step counters) are small and positive, and
unsigned ones are any bits; what only the update reads (second moments) is positive; PRNG keys are
keys. Never uninitialised memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from cfp.segments.ranges import index_ranges
from cfp.segments.spans import limits
from cfp.trace import Graph, Role, is_key

COUNTER = (1, 3)  # [low, high) of integers that index nothing: a step has been taken, or two
SEED = 0  # of the values that programs are measured on


@dataclass(frozen=True, slots=True)
class Fill:
    """How an input is filled.

    `normal` around zero; `positive` in (0.1, 1); `integers` in [low, high); `bits` any unsigned
    integer (a PRNG key's data); `bools`.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: Literal["normal", "positive", "integers", "bits", "bools"]
    low: int = 0
    high: int = 0

    def array(self, random: np.random.Generator) -> np.ndarray:
        """Returns an array of this shape; `random` says which values."""
        dtype = jnp.dtype(self.dtype)
        if self.kind == "bools":
            return random.random(self.shape) < 0.5
        if self.kind == "bits":
            largest = int(limits(self.dtype).high)
            return np.asarray(random.integers(0, largest, self.shape, np.uint64)).astype(dtype)
        if self.kind == "integers":
            return np.asarray(random.integers(self.low, self.high, self.shape)).astype(dtype)
        if self.kind == "positive":
            return np.asarray(random.uniform(0.1, 1.0, self.shape)).astype(dtype)
        return np.asarray(random.normal(0.0, 0.1, self.shape)).astype(dtype)


def fills_of(graph: Graph, values: Sequence[int]) -> tuple[Fill, ...]:
    """Returns how values that are given together are filled. A PRNG key's fill is of its bits."""
    ranges = index_ranges(graph, values)
    return tuple(_fill(graph, value, ranges.get(value)) for value in values)


def _fill(graph: Graph, index: int, within: tuple[int, int] | None) -> Fill:
    value = graph.values[index]
    shape, dtype = value.shape, value.dtype
    if is_key(dtype):
        return Fill((*shape, *dtype._impl.key_shape), "uint32", "bits")
    name = str(dtype)
    if dtype == np.bool_:
        return Fill(shape, name, "bools")
    if within is not None:
        return Fill(shape, name, "integers", *within)
    if jnp.issubdtype(dtype, np.unsignedinteger):
        return Fill(shape, name, "bits")
    if jnp.issubdtype(dtype, np.integer):
        return Fill(shape, name, "integers", *COUNTER)
    roles = {graph.equations[reader].role for reader in graph.readers[index]}
    positive = roles == {Role.UPDATE} or not shape
    return Fill(shape, name, "positive" if positive else "normal")


def as_key(graph: Graph, index: int, bits: Any) -> Any:
    """Returns the key that these bits are; anything else as it is."""
    dtype = graph.values[index].dtype
    if not is_key(dtype):
        return bits
    implementation = dtype._impl  # the only handle on a key's kind that a dtype offers
    return jax.random.wrap_key_data(jnp.asarray(bits), impl=implementation.name)


def example_inputs(graph: Graph, values: Sequence[int], seed: int = SEED) -> list[np.ndarray | Any]:
    """Returns one array per value, the same for the same seed."""
    random = np.random.default_rng(seed)
    pairs = zip(values, fills_of(graph, values), strict=True)
    return [as_key(graph, value, fill.array(random)) for value, fill in pairs]
