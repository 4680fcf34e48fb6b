"""A window that slides along a dim: convolutions and pooling.

Output j reads input i through window place k where

    i * input_dilation = j * stride + k * window_dilation - low

In general neighbours overlap and the dim is broken. It is not broken where every window stays
within its own chunk: nothing slides (a window of 1); patches side by side (the stride is at
least the window), forward and transposed; and patches with their two digits exchanged (the
gradient of a patch's weights).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cfp.affine.factors import Factors, Shape
from cfp.affine.maps import OpMap, Space

Params = Mapping[str, Any]
Shapes = tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Slide:
    """The factors of one dim of the input, the output and the window."""

    inner: Factors
    outer: Factors
    window: Factors
    exact: bool = True


def slide(
    space: Space,
    size: int,
    out: int,
    window: int,
    *,
    stride: int = 1,
    low: int = 0,
    dilation: int = 1,
    window_dilation: int = 1,
) -> Slide:
    """Returns the factors of a dim of `size` along which a window slides to give `out` elements."""
    plain = dilation == 1 and low == 0
    if (
        plain
        and (window == 1 or window_dilation == 1)
        and window <= stride
        and size == out * stride
    ):
        # i = j * stride + k: patches side by side, with gaps where the window is the smaller.
        outer = space.new(out)
        patch = space.new(stride)
        if window == stride:
            return Slide((*outer, *patch), outer, patch)
        return Slide((*outer, *patch), outer, space.new(window), exact=False)
    if plain and window_dilation == 1 and out == 1 and size == window:
        patch = space.new(window)  # one patch
        return Slide(patch, (), patch)
    if plain and stride == 1 and window_dilation == out and size == window * out:
        # i = k * out + j: the gradient of a patch's weights.
        places, outer = space.new(window), space.new(out)
        return Slide((*places, *outer), outer, places)
    transposed = stride == 1 and window_dilation == 1 and low == window - 1
    if transposed and window <= dilation and out == size * dilation:
        # i * dilation = j + k - low: the gradient of the patches; k runs backwards in each.
        inner = space.new(size)
        return Slide(inner, (*inner, *space.new(dilation)), space.new(window), exact=False)
    return Slide(space.new(size), space.new(out), space.new(window), exact=False)


def reduce_window(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the map of pooling: n tensors reduced through one window, then (where the rule has
    any) scalars."""
    space = Space()
    dims = _slides(space, params, ins[0], outs[0])
    inner, outer = tuple([at.inner for at in dims]), tuple([at.outer for at in dims])
    operands = tuple([inner if shape == ins[0] else space.dims(shape) for shape in ins])
    patches = [at.window for at in dims if at.exact and "select_prim" not in params]
    return space.op(
        operands,
        (outer,) * len(outs),
        [factor for patch in patches for factor in patch],
        all(at.exact for at in dims),
    )


def select_and_scatter_add(params: Params, ins: Shapes, outs: Shapes) -> OpMap:
    """Returns the gradient of pooling by maximum: (pooled gradient, operand) to the operand's
    gradient."""
    space = Space()
    dims = _slides(space, params, outs[0], ins[0])
    pooled, whole = tuple([at.outer for at in dims]), tuple([at.inner for at in dims])
    shared = {factor for dim in pooled for factor in dim}
    result = tuple(  # any element of a patch decides where the patch's gradient goes
        [
            sum([(f,) if f in shared else space.new(space.sizes[f]) for f in dim], ())
            for dim in whole
        ]
    )
    return space.op((pooled, whole), (result,), exact=False)


def _slides(space: Space, params: Params, shape: Shape, out_shape: Shape) -> list[Slide]:
    ones = (1,) * len(shape)
    return [
        slide(space, size, out, window, stride=stride, low=low, dilation=d, window_dilation=w)
        for size, out, window, stride, (low, _), d, w in zip(
            shape,
            out_shape,
            params["window_dimensions"],
            params["window_strides"],
            params["padding"],
            params.get("base_dilation", ones),
            params.get("window_dilation", ones),
            strict=True,
        )
    ]
