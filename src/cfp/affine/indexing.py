"""Operations that find the elements they need by looking at data.

Which element it is cannot be known beforehand, so a dim that is looked up, or sorted, ranges
freely; dims taken whole and batch dims are kept. A lookup may be split along the dim it looks
into (each part finds what lies within it, zero elsewhere, and a sum completes the result), a
scatter-add along its updates.
"""

from collections.abc import Mapping
from typing import Any

from cfp.affine.factors import Factors, Shape
from cfp.affine.maps import OpMap, Space
from cfp.affine.structural import broken

Params = Mapping[str, Any]
Shapes = tuple[Shape, ...]


def gather(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """result[batch..., offsets...] = operand[starts[batch...] + offsets...]

    `starts` is the second operand; its last dim holds the coordinates of one start.
    """
    numbers = params["dimension_numbers"]
    (shape, starts), (out_shape,) = ins, outs
    slice_sizes = params["slice_sizes"]
    space = Space()
    offsets = iter(numbers.offset_dims)
    batch = space.dims(starts[:-1])
    paired = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    gone = set(numbers.collapsed_slice_dims) | set(paired)
    operand: list[Factors] = []
    result: dict[int, Factors] = {}
    reduced: list[int] = []
    for d, size in enumerate(shape):
        dim = batch[paired[d]] if d in paired else space.new(size)
        operand.append(dim)
        whole = slice_sizes[d] == size
        if d not in gone:
            result[next(offsets)] = dim if whole else space.new(slice_sizes[d])
        if d not in paired and (d in gone or not whole):
            reduced += dim
    rest = iter(batch)
    return space.op(
        (tuple(operand), (*batch, space.new(starts[-1]))),
        (tuple([result[d] if d in result else next(rest) for d in range(len(out_shape))]),),
        reduced,
        exact=not (reduced or numbers.start_index_map),
    )


def scatter(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of the transpose of gather: updates[batch..., offsets...] go to
    operand[starts + offsets].

    The result holds every operand element in its place, unless an update replaced it.
    """
    return _scatter(params, ins)[0]


def scatter_reduce(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of scatter-add and the like: updates to one place add up, so they may be
    split."""
    op, scattered = _scatter(params, ins)
    return OpMap(op.sizes, op.operands, op.results, frozenset(scattered), op.exact)


def _scatter(params: Params, ins: Shapes) -> tuple[OpMap, list[int]]:
    """Returns the map, and the factors of the updates' dims that say where (not what)."""
    numbers = params["dimension_numbers"]
    shape, starts, updates = ins
    space = Space()
    operand = space.dims(shape)
    paired = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    batch = [
        operand[paired[d]] if d in paired else space.new(size) for d, size in enumerate(starts[:-1])
    ]
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = iter([d for d in range(len(shape)) if d not in gone])
    rest = iter(batch)
    dims: list[Factors] = []
    scattered = [f for d, dim in enumerate(batch) if d not in paired for f in dim]
    for u, size in enumerate(updates):
        if u not in numbers.update_window_dims:
            dims.append(next(rest))
            continue
        d = next(windows)
        part = operand[d] if size == shape[d] else space.new(size)
        dims.append(part)
        if size != shape[d]:
            scattered += part
    operands = (operand, (*batch, space.new(starts[-1])), tuple(dims))
    return space.op(operands, (operand,), exact=False), scattered


def sort(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    return broken([params["dimension"]], ins, outs)


def top_k(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of top_k and approx_top_k; the dim is the last where the params do not name
    it."""
    at = params.get("axis", params.get("reduction_dimension", -1))
    return broken([at % len(ins[0])], ins, outs)


def fft(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of fft: every element needs all of the last dims, as many as there are
    lengths."""
    last = len(ins[0])
    return broken(range(last - len(params["fft_lengths"]), last), ins, outs)
