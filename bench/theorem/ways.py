"""The ways to compute one equation on P devices.

A way splits one leading factor f of the equation's map (or none). Every tensor with a dim that
begins with f is split there; an operand without f is whole; a result without f is whole if no
operand has f, a partial sum if f is reduced, and otherwise the way does not exist (nor where f
lies inside a dim: its parts would not be contiguous). Where f alone does not divide by P, the
factors after it that all these dims share take part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from cfp.affine import Dims, OpMap
from cfp.blocks.contraction import SeedDim
from cfp.trace import Op

Sharding = int | None  # the dim that is split; None: whole


@dataclass(frozen=True, slots=True)
class Way:
    """How each operand must come, how each result is delivered, and the units that costs."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: bool = False
    price: int = 0


def whole(op: Op) -> Way:
    return Way((None,) * len(op.in_shapes), (None,) * len(op.out_shapes))


def split_ways(op: Op, parts: int) -> list[Way]:
    """Returns every way of `op` that splits something into `parts`."""
    mapping = op.map
    if mapping is None:
        return []
    tensors = (*mapping.operands, *mapping.results)
    leads = dict.fromkeys(dim[0] for dims in tensors for dim in dims if dim)
    return [way for lead in leads for way in _split(op, mapping, lead, parts)]


def _split(op: Op, mapping: OpMap, lead: int, parts: int) -> Iterator[Way]:
    tensors = (*mapping.operands, *mapping.results)
    prefix = _prefix(mapping, lead, parts)
    if prefix is None:
        return
    places: list[Sharding] = []
    for dims in tensors:
        at = next((d for d, dim in enumerate(dims) if dim and dim[0] == lead), None)
        if at is None and not prefix.isdisjoint(itertools.chain(*dims)):
            return
        places.append(at)
    operands = tuple(places[: len(mapping.operands)])
    results = tuple(places[len(mapping.operands) :])
    consumed = any(at is not None for at in operands)
    if not consumed or None not in results:
        yield Way(operands, results)
    elif prefix <= mapping.reduced and all(at is None for at in results):
        yield from _completed(op, operands, parts)


def _prefix(mapping: OpMap, lead: int, parts: int) -> frozenset[int] | None:
    """Returns the fewest factors, shared by all dims that `lead` begins, that divide by `parts`."""
    tensors: tuple[Dims, ...] = (*mapping.operands, *mapping.results)
    led = [dim for dims in tensors for dim in dims if dim and dim[0] == lead]
    taken: list[int] = []
    for column in zip(*led, strict=False):
        if len(set(column)) > 1:
            return None
        taken.append(column[0])
        if math.prod(mapping.sizes[f] for f in taken) % parts == 0:
            return frozenset(taken)
    return None


def _completed(op: Op, operands: tuple[Sharding, ...], parts: int) -> Iterator[Way]:
    """Yields ways in which a partial sum is completed at once: all-reduced, or reduce-scattered
    along some dim."""
    options: list[list[tuple[Sharding, int]]] = []
    for shape, dtype in zip(op.out_shapes, op.out_dtypes, strict=True):
        n = math.prod(shape) * int(dtype.itemsize)
        scattered = [(d, n * parts) for d in splittable(shape, parts)]
        options.append([(None, 2 * n * parts), *scattered])
    for chosen in itertools.product(*options):
        price = sum(units for _, units in chosen)
        yield Way(operands, tuple(at for at, _ in chosen), partial=True, price=price)


def splittable(shape: tuple[int, ...], parts: int) -> list[int]:
    return [d for d, size in enumerate(shape) if size > 1 and size % parts == 0]


def fits_seed(way: Way, operand_dims: tuple[Sharding, ...], result_dim: Sharding) -> bool:
    """Returns whether a way is what a block's candidate says of a contraction."""
    if way.operands != operand_dims:
        return False
    return way.partial if result_dim is None else way.results == (result_dim,)


def of_seed(ways: list[Way], dims: list[SeedDim]) -> list[Way]:
    """Returns the ways that the candidate dims of a contraction allow."""
    splits = [dim.split for dim in dims]
    return [w for w in ways if any(fits_seed(w, s.operand_dims, s.result_dim) for s in splits)]
