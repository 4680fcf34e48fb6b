"""More families: lookups, scans, windows and random numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from .families import Draw, family, fill, indices, integers, one, shapes
from .oracle import FINITE, Case


@family
def take(draw: Draw) -> Case:
    shape = draw(shapes())
    at = draw(integers(0, len(shape) - 1))
    where = indices(draw, shape[at], *draw(shapes(0, 2, 3)))
    mode = one(draw, "clip", "fill")
    return Case(lambda x, i: jnp.take(x, i, axis=at, mode=mode), [fill(draw, *shape), where])


@family
def take_along(draw: Draw) -> Case:
    shape = draw(shapes())
    at = draw(integers(0, len(shape) - 1))
    inner = (*shape[:at], draw(integers(1, 3)), *shape[at + 1 :])
    where = indices(draw, shape[at], *inner)
    return Case(lambda x, i: jnp.take_along_axis(x, i, axis=at), [fill(draw, *shape), where])


@family
def gather(draw: Draw) -> Case:
    """Any gather: batch dims, dims looked up (windows of any size), dims taken whole."""
    numbers, shape, starts, sizes = lookup(draw)
    dnums = lax.GatherDimensionNumbers(
        offset_dims=numbers["offset"],
        collapsed_slice_dims=numbers["collapsed"],
        start_index_map=numbers["map"],
        operand_batching_dims=numbers["operand_batch"],
        start_indices_batching_dims=numbers["index_batch"],
    )
    where = indices(draw, 3, *starts)
    fn = lambda x, i: lax.gather(x, i, dnums, sizes, mode="clip")  # noqa: E731
    return Case(fn, [fill(draw, *shape), where], f"{dnums} {shape} {starts} {sizes}")


@family
def scatter(draw: Draw) -> Case:
    numbers, shape, starts, _ = lookup(draw)
    dnums = lax.ScatterDimensionNumbers(
        update_window_dims=numbers["offset"],
        inserted_window_dims=numbers["collapsed"],
        scatter_dims_to_operand_dims=numbers["map"],
        operand_batching_dims=numbers["operand_batch"],
        scatter_indices_batching_dims=numbers["index_batch"],
    )
    where = indices(draw, 3, *starts)
    updates = fill(draw, *numbers["result"]) + 2
    fn = one(draw, lax.scatter, lax.scatter_add, lax.scatter_mul, lax.scatter_min, lax.scatter_max)
    call = lambda x, i, u: fn(x, i, u, dnums, mode="clip")  # noqa: E731
    return Case(call, [fill(draw, *shape), where, updates], f"{fn.__name__} {dnums} {shape}")


def lookup(draw: Draw) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Dimension numbers that a gather and a scatter have in common, and shapes that fit."""
    kinds = draw(
        st.lists(st.sampled_from(["batch", "collapsed", "window", "whole"]), min_size=1, max_size=3)
    )
    shape = tuple(draw(integers(2, 3)) for _ in kinds)
    batch = [d for d, kind in enumerate(kinds) if kind == "batch"]
    free = draw(shapes(0, 1, 3))
    # The indices' dims: the batch dims and the free ones, in any order.
    order = draw(
        st.permutations([("batch", d) for d in batch] + [("free", i) for i in range(len(free))])
    )
    starts = tuple(shape[i] if kind == "batch" else free[i] for kind, i in order)
    looked = [d for d, kind in enumerate(kinds) if kind in ("collapsed", "window")]
    looked = list(draw(st.permutations(looked)))
    sizes = tuple(
        n if kind == "whole" else 1 if kind in ("batch", "collapsed") else draw(integers(1, n))
        for kind, n in zip(kinds, shape, strict=True)
    )
    window = [n for kind, n in zip(kinds, sizes, strict=True) if kind in ("window", "whole")]
    rank = len(starts) + len(window)
    offset = tuple(sorted(draw(st.permutations(range(rank)))[: len(window)]))
    rest, inner = iter(starts), iter(window)
    numbers = {
        "offset": offset,
        "collapsed": tuple(d for d, kind in enumerate(kinds) if kind == "collapsed"),
        "map": tuple(looked),
        "operand_batch": tuple(batch),
        "index_batch": tuple(order.index(("batch", d)) for d in batch),
        "result": tuple(next(inner) if d in offset else next(rest) for d in range(rank)),
    }
    return numbers, shape, (*starts, len(looked)), sizes


@family
def sort(draw: Draw) -> Case:
    shape = draw(shapes())
    at = draw(integers(0, len(shape) - 1))
    many = draw(integers(1, 3))
    keys = draw(integers(1, many))
    inputs = [fill(draw, *shape) for _ in range(many)]
    return Case(lambda *xs: lax.sort(xs, dimension=at, num_keys=keys), inputs)


@family
def top_k(draw: Draw) -> Case:
    shape = draw(shapes())
    k = draw(integers(1, shape[-1]))
    return Case(lambda x: lax.top_k(x, k), [fill(draw, *shape)])


@family
def cumulative(draw: Draw) -> Case:
    shape = draw(shapes())
    axis = draw(integers(0, len(shape) - 1))
    fn = one(draw, lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)
    reverse = draw(st.booleans())
    return Case(lambda x: fn(x, axis=axis, reverse=reverse), [fill(draw, *shape)])


@family
def conv(draw: Draw) -> Case:
    """Any convolution in one or two spatial dims, patches and their gradients among them."""
    groups, batch_groups = one(draw, (1, 1), (1, 1), (2, 1), (1, 2))
    spatial = draw(st.lists(spatial_dim(), min_size=1, max_size=2))
    n, c, o = (
        batch_groups * draw(integers(1, 2)),
        draw(integers(1, 2)),
        draw(integers(1, 2)),
    )
    lhs = fill(draw, n, c * groups, *[s["size"] for s in spatial])
    rhs = fill(draw, o * groups * batch_groups, c, *[s["window"] for s in spatial])
    lspec, rspec, ospec = (tuple(draw(st.permutations(range(lhs.ndim)))) for _ in range(3))
    params = {
        "window_strides": [s["stride"] for s in spatial],
        "padding": [s["padding"] for s in spatial],
        "lhs_dilation": [s["dilation"] for s in spatial],
        "rhs_dilation": [s["window_dilation"] for s in spatial],
        "dimension_numbers": lax.ConvDimensionNumbers(lspec, rspec, ospec),
        "feature_group_count": groups,
        "batch_group_count": batch_groups,
    }

    def place(x: np.ndarray, spec: tuple[int, ...]) -> np.ndarray:
        return np.transpose(x, [spec.index(d) for d in range(x.ndim)])

    return Case(
        lambda x, w: lax.conv_general_dilated(x, w, **params),
        [place(lhs, lspec), place(rhs, rspec)],
        f"conv {lhs.shape} {rhs.shape} {params}",
        poison=FINITE,  # XLA runs some groups as one convolution with masks: 0 * nan
    )


@st.composite
def spatial_dim(draw: Draw) -> dict[str, Any]:
    window = draw(integers(1, 3))
    many = draw(integers(1, 3))
    plain = {
        "size": many,
        "window": window,
        "stride": 1,
        "padding": (0, 0),
        "dilation": 1,
        "window_dilation": 1,
    }
    kind = one(draw, "patch", "weights", "transposed", "point", "any", "strided", "sparse")
    change: dict[str, Any] = {
        "patch": {"size": many * window, "stride": window},
        "weights": {"size": many * window, "window": many, "window_dilation": window},
        "transposed": {"dilation": window, "padding": (window - 1, window - 1)},
        "point": {"window": 1},
        "strided": {"window": 1, "stride": window, "size": many * window},
        "sparse": {"window": 1, "dilation": window, "padding": (0, window - 1)},
        "any": {
            "size": draw(integers(3, 5)),
            "stride": draw(integers(1, 2)),
            "padding": (draw(integers(0, 2)), draw(integers(0, 2))),
            "dilation": draw(integers(1, 2)),
            "window_dilation": 1,
        },
    }[kind]
    return plain | change


@family
def patch_gradients(draw: Draw) -> Case:
    """A patch embedding with both its gradients."""
    p, n = one(draw, 2, 3), one(draw, 1, 2)

    def fn(x: Any, w: Any, g: Any) -> Any:
        call = lambda x, w: lax.conv_general_dilated(  # noqa: E731
            x, w, (p, p), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.vjp(call, x, w)[1](g)

    x, w = fill(draw, 1, p * n, p * 2, 2), fill(draw, p, p, 2, 2)
    return Case(fn, [x, w, fill(draw, 1, n, 2, 2)], poison=FINITE)


@family
def pool(draw: Draw) -> Case:
    shape = draw(shapes(1, 2))
    window = tuple(draw(integers(1, n)) for n in shape)
    stride = tuple(one(draw, w, draw(integers(1, 3))) for w in window)
    padding = one(draw, "VALID", "SAME")
    reducer, start = one(draw, (lax.max, -np.inf), (lax.add, 0.0))
    fn = lambda x: lax.reduce_window(x, np.float32(start), reducer, window, stride, padding)  # noqa: E731
    if reducer is lax.max and draw(st.booleans()):
        return Case(
            lambda x: jax.vjp(fn, x)[1](jnp.ones(jax.eval_shape(fn, x).shape))[0],
            [fill(draw, *shape)],
        )
    return Case(fn, [fill(draw, *shape)], f"pool {shape} {window} {stride} {padding}")


@family
def pool_gradient(draw: Draw) -> Case:
    many, window = draw(integers(1, 3)), draw(integers(1, 3))
    fn = lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, window), (1, window), "VALID")  # noqa: E731
    x = fill(draw, 2, many * window)
    return Case(lambda x, g: jax.vjp(fn, x)[1](g)[0], [x, fill(draw, 2, many)])


@family
def fft(draw: Draw) -> Case:
    shape = draw(shapes(2, 3))
    return Case(lambda x: jnp.abs(jnp.fft.fft(x)), [fill(draw, *shape)])


@family
def random_numbers(draw: Draw) -> Case:
    """Keys in a batch, each making a block of numbers."""
    many, shape = draw(integers(1, 3)), draw(shapes(1, 2, 3))
    raw = indices(draw, 90, many, 2).astype("uint32")

    def fn(raw: Any) -> Any:
        keys = jax.random.wrap_key_data(raw)
        keys = jax.vmap(lambda k: jax.random.split(k)[0])(keys)
        return jax.vmap(lambda k: jax.random.bits(k, shape))(keys)

    return Case(fn, [raw])


@family
def bitcast(draw: Draw) -> Case:
    shape = draw(shapes())
    raw = (indices(draw, 90, *shape) + 1) * 0x10001
    kind = one(draw, np.uint32, np.uint16, np.float32)
    return Case(lambda x: lax.bitcast_convert_type(x, kind), [raw])
