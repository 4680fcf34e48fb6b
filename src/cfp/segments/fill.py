"""Sensible values for a program's inputs: finite, of the right kind, and inside what they index.

Integers that end up as positions of a lookup stay below the size they look up in; other
integers (step counters) are small and positive; what only the update reads (second moments) is
positive; PRNG keys are keys. Never uninitialised memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cfp.trace import Graph, Role

INDEXING = {"gather": 1, "scatter": 1, "scatter-add": 1, "scatter_add": 1}
SLICING = frozenset({"dynamic_slice", "dynamic_update_slice"})


def example_inputs(graph: Graph, values: Sequence[int], seed: int = 0) -> list[np.ndarray | Any]:
    """One array per value, the same for the same seed."""
    random = np.random.default_rng(seed)
    return [_fill(graph, value, random) for value in values]


def _fill(graph: Graph, index: int, random: np.random.Generator) -> Any:
    value = graph.values[index]
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return _keys(value.shape, value.dtype, random)
    if value.dtype == np.bool_:
        return random.random(value.shape) < 0.5
    if jnp.issubdtype(value.dtype, np.unsignedinteger):
        return random.integers(0, np.iinfo(value.dtype).max, value.shape, value.dtype)
    if jnp.issubdtype(value.dtype, np.integer):
        bound = index_bound(graph, index)
        low, high = (1, 3) if bound is None else (0, bound)
        return random.integers(low, high, value.shape).astype(value.dtype)
    roles = {graph.equations[reader].role for reader in graph.readers[index]}
    positive = roles == {Role.UPDATE} or not value.shape
    if positive:
        return np.asarray(random.uniform(0.1, 1.0, value.shape)).astype(value.dtype)
    return np.asarray(random.normal(0.0, 0.1, value.shape)).astype(value.dtype)


def _keys(shape: tuple[int, ...], dtype: Any, random: np.random.Generator) -> Any:
    implementation = dtype._impl  # the only handle on a key's kind that a dtype offers
    bits = random.integers(0, 2**32, (*shape, *implementation.key_shape), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(bits), impl=implementation.name)


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
