"""Sensible values for a program's inputs: finite, of the right kind, and inside what they index.

Integers that end up as positions of a lookup stay below the size they look up in; other
integers (step counters) are small and positive; what only the update reads (second moments) is
positive; PRNG keys are keys. Never uninitialised memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from cfp.trace import Graph, Role, is_key

INDEXING = {"gather": 1, "scatter": 1, "scatter-add": 1, "scatter_add": 1}
SEED = 0  # of the values that programs are measured on
SLICING = frozenset({"dynamic_slice", "dynamic_update_slice"})


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
        """Of this shape; `random` says which values."""
        dtype = jnp.dtype(self.dtype)
        if self.kind == "bools":
            return random.random(self.shape) < 0.5
        if self.kind == "bits":
            return random.integers(0, np.iinfo(dtype).max, self.shape, dtype)
        if self.kind == "integers":
            return random.integers(self.low, self.high, self.shape).astype(dtype)
        if self.kind == "positive":
            return np.asarray(random.uniform(0.1, 1.0, self.shape)).astype(dtype)
        return np.asarray(random.normal(0.0, 0.1, self.shape)).astype(dtype)


def fill_of(graph: Graph, index: int) -> Fill:
    """How a value is filled. A PRNG key's fill is of its bits."""
    value = graph.values[index]
    shape, dtype = value.shape, value.dtype
    if is_key(dtype):
        return Fill((*shape, *dtype._impl.key_shape), "uint32", "bits")
    name = str(dtype)
    if jnp.issubdtype(dtype, np.unsignedinteger):
        return Fill(shape, name, "bits")
    if dtype == np.bool_:
        return Fill(shape, name, "bools")
    if jnp.issubdtype(dtype, np.integer):
        bound = index_bound(graph, index)
        low, high = (1, 3) if bound is None else (0, bound)
        return Fill(shape, name, "integers", low, high)
    roles = {graph.equations[reader].role for reader in graph.readers[index]}
    positive = roles == {Role.UPDATE} or not shape
    return Fill(shape, name, "positive" if positive else "normal")


def as_key(graph: Graph, index: int, bits: Any) -> Any:
    """The value itself, from the bits of a key; anything else as it is."""
    dtype = graph.values[index].dtype
    if not is_key(dtype):
        return bits
    implementation = dtype._impl  # the only handle on a key's kind that a dtype offers
    return jax.random.wrap_key_data(jnp.asarray(bits), impl=implementation.name)


def example_inputs(graph: Graph, values: Sequence[int], seed: int = SEED) -> list[np.ndarray | Any]:
    """One array per value, the same for the same seed."""
    random = np.random.default_rng(seed)
    return [as_key(graph, value, fill_of(graph, value).array(random)) for value in values]


def index_bound(graph: Graph, value: int) -> int | None:
    """The smallest size that the integers of `value` look up in, if they do."""
    bound: int | None = None
    seen = {value}
    todo = [value]
    while todo:
        current = todo.pop()
        for reader in graph.readers[current]:
            equation = graph.equations[reader]
            found = _indexed(equation.op, equation.inputs, current)
            if found is not None:
                bound = found if bound is None else min(bound, found)
                continue
            for output in equation.outputs:
                integer = jnp.issubdtype(graph.values[output].dtype, np.signedinteger)
                if integer and output not in seen:
                    seen.add(output)
                    todo.append(output)
    return bound


def _indexed(op: Any, inputs: Sequence[int], value: int) -> int | None:
    if op.primitive in INDEXING and inputs[INDEXING[op.primitive]] == value:
        numbers = op.params["dimension_numbers"]
        dims = getattr(numbers, "start_index_map", None)
        if dims is None:
            dims = numbers.scatter_dims_to_operand_dims
        return min((op.in_shapes[0][dim] for dim in dims), default=None)
    if op.primitive in SLICING and value in inputs[1:]:
        return 1
    return None
