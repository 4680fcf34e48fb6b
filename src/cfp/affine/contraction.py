"""Contractions: dims of two operands paired, multiplied and summed.

    dot_general  out[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]
    convolution  out[n, (g, o), j] = sum over c, k of lhs[n, (g, c), i] * rhs[(g, o), c, k]

g are the feature groups; batch groups are the major part of lhs's batch n instead. How the place
i depends on j and k is told in `window`.
"""

from collections.abc import Mapping
from typing import Any

from cfp.affine.factors import Factors, Shape
from cfp.affine.maps import OpMap, Space
from cfp.affine.window import Window, slide


def dot_general(
    params: Mapping[str, Any], ins: tuple[Shape, ...], outs: tuple[Shape, ...]
) -> OpMap:
    (lhs_sums, rhs_sums), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    space = Space()
    lhs: list[Factors | None] = [None] * len(ins[0])
    rhs: list[Factors | None] = [None] * len(ins[1])
    batch: list[Factors] = []
    reduced: list[int] = []
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        lhs[i] = rhs[j] = dim = space.new(ins[0][i])
        batch.append(dim)
    for i, j in zip(lhs_sums, rhs_sums, strict=True):
        lhs[i] = rhs[j] = dim = space.new(ins[0][i])
        reduced += dim
    rows, lhs_dims = _free(space, lhs, ins[0])
    columns, rhs_dims = _free(space, rhs, ins[1])
    return space.op(
        (lhs_dims, rhs_dims),
        ((*batch, *rows, *columns),),
        reduced,
    )


def conv_general_dilated(
    params: Mapping[str, Any], ins: tuple[Shape, ...], outs: tuple[Shape, ...]
) -> OpMap:
    numbers = params["dimension_numbers"]
    lhs_at, rhs_at, out_at = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    (lhs_shape, rhs_shape), (out_shape,) = ins, outs
    space = Space()
    batch = space.new(out_shape[out_at[0]])
    batch_group = space.new(params["batch_group_count"])
    group = space.new(params["feature_group_count"])
    within = params["batch_group_count"] * params["feature_group_count"]
    features = (*batch_group, *group, *space.new(rhs_shape[rhs_at[0]] // within))
    channels = space.new(rhs_shape[rhs_at[1]])
    lhs = {lhs_at[0]: (*batch_group, *batch), lhs_at[1]: (*group, *channels)}
    rhs = {rhs_at[0]: features, rhs_at[1]: channels}
    out = {out_at[0]: batch, out_at[1]: features}
    exact, reduced = True, [*channels]
    for d in range(len(lhs_at) - 2):
        i, j, k = lhs_at[d + 2], out_at[d + 2], rhs_at[d + 2]
        window = Window(
            size=rhs_shape[k],
            stride=params["window_strides"][d],
            low=params["padding"][d][0],
            dilation=params["lhs_dilation"][d],
            window_dilation=params["rhs_dilation"][d],
        )
        at = slide(space, lhs_shape[i], out_shape[j], window)
        lhs[i], out[j], rhs[k] = at.inner, at.outer, at.window
        reduced += at.window
        exact = exact and at.exact
    return space.op(
        (
            tuple([lhs[d] for d in range(len(lhs_shape))]),
            tuple([rhs[d] for d in range(len(rhs_shape))]),
        ),
        (tuple([out[d] for d in range(len(out_shape))]),),
        reduced,
        exact,
    )


def _free(
    space: Space, dims: list[Factors | None], shape: Shape
) -> tuple[list[Factors], tuple[Factors, ...]]:
    """Returns the dims that were not paired, as new factors, and all dims."""
    free: list[Factors] = []
    out: list[Factors] = []
    for dim, size in zip(dims, shape, strict=True):
        if dim is None:
            dim = space.new(size)
            free.append(dim)
        out.append(dim)
    return free, tuple(out)
