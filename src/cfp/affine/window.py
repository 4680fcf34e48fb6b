"""A window that slides along a dim: convolutions and pooling.

Output j reads input i through window place k where

    i * dilation = j * stride + k * window_dilation - low

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window of `size` places along one dim; the names are those of the formula above."""

    size: int
    stride: int = 1
    low: int = 0
    dilation: int = 1
    window_dilation: int = 1


def slide(space: Space, size: int, out: int, window: Window) -> Slide:
    """Returns the factors of a dim of `size` along which a window slides to give `out` elements."""
    places, stride = window.size, window.stride
    plain = window.dilation == 1 and window.low == 0
    dense = window.window_dilation == 1
    if plain and (places == 1 or dense) and places <= stride and size == out * stride:
        # i = j * stride + k: patches side by side, with gaps where the window is the smaller.
        outer = space.new(out)
        patch = space.new(stride)
        if places == stride:
            return Slide((*outer, *patch), outer, patch)
        return Slide((*outer, *patch), outer, space.new(places), exact=False)
    if plain and dense and out == 1 and size == places:
        patch = space.new(places)  # one patch
        return Slide(patch, (), patch)
    if plain and stride == 1 and window.window_dilation == out and size == places * out:
        # i = k * out + j: the gradient of a patch's weights.
        major, outer = space.new(places), space.new(out)
        return Slide((*major, *outer), outer, major)
    transposed = stride == 1 and dense and window.low == places - 1
    if transposed and places <= window.dilation and out == size * window.dilation:
        # i * dilation = j + k - low: the gradient of the patches; k runs backwards in each.
        inner = space.new(size)
        minor = space.new(window.dilation)
        return Slide(inner, (*inner, *minor), space.new(places), exact=False)
    return Slide(space.new(size), space.new(out), space.new(places), exact=False)


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
        slide(
            space,
            size,
            out,
            Window(size=places, stride=stride, low=low, dilation=d, window_dilation=w),
        )
        for size, out, places, stride, (low, _), d, w in zip(
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
