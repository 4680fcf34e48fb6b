"""Operations that move elements, or put others beside them, at places known beforehand.

    transpose  f_i(a) = a_pi(i)          broadcast  f_i(a) = a_i without the added dims

A slice, pad, concatenate or split breaks the dim it cuts. What survives is the digit below every
cut: with g the greatest common divisor of all lengths and offsets, the index modulo g. So the
halves of a dim share its minor digit (never the major one, which a split over devices needs),
and taking every k-th element of a dim that k divides keeps its major digit.
"""

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Any

from cfp.affine.factors import Dims, Factors, Shape
from cfp.affine.maps import OpMap, Space

Params = Mapping[str, Any]
Shapes = tuple[Shape, ...]


def transpose(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space = Space()
    dims = space.dims(ins[0])
    return space.op((dims,), (tuple([dims[i] for i in params["permutation"]]),))


def broadcast_in_dim(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space = Space()
    result = space.dims(outs[0])
    operand = tuple(
        [
            result[d] if size > 1 else ()
            for d, size in zip(_ints(params["broadcast_dimensions"]), ins[0], strict=True)
        ]
    )
    return space.op((operand, *_scalars(space, ins[1:])), (result,))


def squeeze(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    gone = {d % len(ins[0]) for d in _ints(params["dimensions"])}
    space = Space()
    dims = space.dims(ins[0])
    kept = tuple([dim for d, dim in enumerate(dims) if d not in gone])
    return space.op((dims,), (kept,))


def expand_dims(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    added = {d % len(outs[0]) for d in _ints(params["dimensions"])}
    space = Space()
    dims = space.dims(ins[0])
    rest = iter(dims)
    result = tuple([() if d in added else next(rest) for d in range(len(outs[0]))])
    return space.op((dims,), (result,))


def slice_(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    starts = _ints(params["start_indices"])
    strides = _ints(params["strides"] or (1,) * len(starts))
    space = Space()
    pairs = [
        _cut(space, size, part, start, stride)
        for size, part, start, stride in zip(ins[0], outs[0], starts, strides, strict=True)
    ]
    return _pairs(space, pairs, exact=ins[0] == outs[0])


def pad(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space = Space()
    pairs = []
    for part, size, (low, _, interior) in zip(
        ins[0], outs[0], params["padding_config"], strict=True
    ):
        big, small = _cut(space, size, part, int(low), int(interior) + 1)
        pairs.append((small, big))
    return _pairs(space, pairs, ins[1:], exact=False)


def dynamic_slice(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space = Space()
    pairs = [_whole(space, *sizes) for sizes in zip(ins[0], outs[0], strict=True)]
    return _pairs(space, pairs, ins[1:], exact=False)


def dynamic_update_slice(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space = Space()
    dims = space.dims(ins[0])
    update = tuple(
        [
            dim if size == part else space.new(part)
            for dim, size, part in zip(dims, ins[0], ins[1], strict=True)
        ]
    )
    operands = (dims, update, *_scalars(space, ins[2:]))
    return space.op(operands, (dims,), exact=False)


def concatenate(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space, at = Space(), int(params["dimension"])
    result, parts = _chain(space, outs[0], [shape[at] for shape in ins], at)
    return space.op(parts, (result,), exact=len(ins) == 1)


def split(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space, at = Space(), int(params["axis"])
    operand, parts = _chain(space, ins[0], [shape[at] for shape in outs], at)
    return space.op((operand,), parts, exact=len(outs) == 1)


def stack(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space, at = Space(), int(params["axis"])
    dims = space.dims(ins[0])
    result = (*dims[:at], space.new(len(ins)), *dims[at:])
    return space.op((dims,) * len(ins), (result,), exact=len(ins) == 1)


def unstack(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space, at = Space(), int(params["axis"])
    dims = space.dims(ins[0])
    results = ((*dims[:at], *dims[at + 1 :]),) * len(outs)
    return space.op((dims,), results, exact=len(outs) == 1)


def tile(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    space = Space()
    dims = space.dims(ins[0])
    reps = _ints(params["reps"])
    return space.op(
        (dims,),
        (tuple([(*space.new(n), *dim) for n, dim in zip(reps, dims, strict=True)]),),
    )


def rev(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    return broken(_ints(params["dimensions"]), ins, outs)


def cumulative(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    return broken([int(params["axis"])], ins, outs)


def reduction(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of reduce_sum and the like (`axes`), and of `reduce` (`dimensions`): n
    tensors, n start values."""
    gone = {d % len(ins[0]) for d in _ints(params["axes" if "axes" in params else "dimensions"])}
    space = Space()
    dims = space.dims(ins[0])
    kept = tuple([dim for d, dim in enumerate(dims) if d not in gone])
    many = len(outs)
    return space.op(
        (dims,) * many + _scalars(space, ins[many:]),
        (kept,) * many,
        reduced=[factor for d in gone for factor in dims[d]],
        exact=many == 1,
    )


def arg_reduction(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of argmax and argmin: no sum or maximum of partial positions gives the
    position."""
    op = reduction(params, ins, outs)
    return OpMap(op.sizes, op.operands, op.results, exact=bool(op.reduced))


def leading(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of operands and results that agree in their leading dims; each has trailing
    dims of its own.

    Keys of random numbers (each makes a block of numbers) and values reread in another width.
    """
    least = min([len(shape) for shape in (*ins, *outs)])
    space = Space()
    common = space.dims(outs[0][:least])
    operands = tuple([(*common, *space.dims(shape[least:])) for shape in ins])
    results = tuple([(*common, *space.dims(shape[least:])) for shape in outs])
    return space.op(operands, results)


def random_gamma(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of random_gamma: keys for the leading dims, and a shape parameter per
    number."""
    space = Space()
    dims = space.dims(outs[0])
    return space.op((dims[: len(ins[0])], dims), (dims,))


def source(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of results that depend on nothing, or wholly on every operand (iota, raw
    random bits)."""
    space = Space()
    operands = tuple([space.dims(shape) for shape in ins])
    results = tuple([space.dims(shape) for shape in outs])
    return space.op(operands, results, exact=not ins)


def loop_slice(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map from a stacked tensor to a loop body's part of it: [L, *s] to [*s]."""
    space = Space()
    dims = space.dims(ins[0])
    return space.op((dims, *_scalars(space, ins[1:])), (dims[1:],), exact=False)


def loop_stack(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map that stacks what every iteration of a loop gives: [*s] to [L, *s]."""
    space = Space()
    dims = space.dims(outs[0])
    return space.op((dims[1:], *_scalars(space, ins[1:])), (dims,), exact=False)


def broken(gone: Iterable[int], ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the elementwise map, except that along the dims `gone` each result may need all of
    every operand."""
    hidden = set(gone)
    space = Space()
    before = space.dims(ins[0])
    after = tuple([space.new(size) if d in hidden else before[d] for d, size in enumerate(outs[0])])
    exact = len(ins) == len(outs) == 1 and all(ins[0][d] == 1 for d in hidden)
    return space.op((before,) * len(ins), (after,) * len(outs), exact=exact)


def _cut(space: Space, size: int, part: int, start: int, stride: int) -> tuple[Factors, Factors]:
    """Returns the factors of a dim and those of a part of it (elements start, start + stride,
    ...)."""
    if size == part and start == 0 and stride == 1:
        return _whole(space, size, part)
    if start < 0 or size == 0 or part == 0:
        return space.new(size), space.new(part)
    if stride == 1 and size != part:
        return _below(space, size, part, gcd(size, part, start))
    if size == part * stride and start < stride:
        kept = space.new(part)
        return (*kept, *space.new(stride)), kept
    return space.new(size), space.new(part)


def _below(space: Space, size: int, part: int, unit: int) -> tuple[Factors, Factors]:
    """Returns two dims that share their index modulo `unit`."""
    kept = space.new(unit)
    return (*space.new(size // unit), *kept), (*space.new(part // unit), *kept)


def _whole(space: Space, size: int, part: int) -> tuple[Factors, Factors]:
    """Returns a dim that is taken whole, or broken."""
    dim = space.new(size)
    return dim, dim if size == part else space.new(part)


def _chain(space: Space, whole: Shape, parts: list[int], at: int) -> tuple[Dims, tuple[Dims, ...]]:
    """Returns a tensor and the tensors that lie one after another along its dim `at`."""
    dims = space.dims([1 if d == at else size for d, size in enumerate(whole)])
    unit = gcd(*parts)
    if unit == 0:
        return dims, (dims,) * len(parts)
    kept = space.new(unit)

    def tensor(size: int) -> Dims:
        cut = (*space.new(size // unit), *kept) if size else ()
        return (*dims[:at], cut, *dims[at + 1 :])

    return tensor(whole[at]), tuple([tensor(size) for size in parts])


def _pairs(
    space: Space, pairs: list[tuple[Factors, Factors]], rest: Shapes = (), *, exact: bool
) -> OpMap:
    operand, result = tuple([o for o, _ in pairs]), tuple([r for _, r in pairs])
    return space.op((operand, *_scalars(space, rest)), (result,), exact=exact)


def _scalars(space: Space, shapes: Shapes) -> tuple[Dims, ...]:
    """Returns further operands (start indices, padding values), usually scalars."""
    return tuple([space.dims(shape) for shape in shapes])


def _ints(values: Iterable[Any]) -> list[int]:
    return [int(value) for value in values]
