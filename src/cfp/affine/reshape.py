"""Reshape: the same elements in the same order, their index written in other digits.

    split k into k, k+1   f_k(a) = A_{k+1} a_k + a_{k+1}
    merge k, k+1 into k   f_k(a) = floor(a_k / B_{k+1}),  f_{k+1}(a) = a_k mod B_{k+1}

Both shapes are mixed-radix digits of one flat index; `align` finds the digits they have in
common, for any combination of splits and merges: (12,) to (3, 4) shares both digits. (6, 4) to
(4, 6) shares a leading and a trailing digit of 2; the 6 between is broken.
"""

from collections.abc import Mapping
from typing import Any

from cfp.affine.factors import Shape, align
from cfp.affine.maps import OpMap, Space


def reshape(params: Mapping[str, Any], ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> OpMap:
    order = params.get("dimensions")
    shape = ins[0] if order is None else tuple(ins[0][i] for i in order)
    if 0 in shape:
        space = Space()
        dims = space.dims(ins[0]), space.dims(outs[0])
        return space.op((dims[0],), (dims[1],), exact=False)
    sizes, source, target = align(shape, outs[0])
    exact = sum(map(len, source)) == sum(map(len, target)) == len(sizes)
    if order is not None:
        source = [source[order.index(i)] for i in range(len(order))]
    return OpMap(tuple(sizes), (tuple(source),), (tuple(target),), exact=exact)
