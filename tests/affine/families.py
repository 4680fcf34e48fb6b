"""Random calls of real lax operations, a family per kind of rule."""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from .oracle import Case, values

Draw = Callable[[Any], Any]
FAMILIES: dict[str, Callable[[Draw], Case]] = {}


def family(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    FAMILIES[make.__name__] = make
    return make


def cases(name: str) -> st.SearchStrategy[Case]:
    make = FAMILIES[name]

    @st.composite
    def strategy(draw: Draw) -> Case:
        case = make(draw)
        case.name = case.name or name
        return case

    return strategy()


def shapes(low: int = 1, high: int = 3, limit: int = 6) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, limit), min_size=low, max_size=high).map(tuple)


def fill(draw: Draw, *shape: int) -> np.ndarray:
    return values(np.random.default_rng(draw(integers(0, 9))), shape)


def indices(draw: Draw, limit: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(draw(integers(0, 9)))
    return rng.integers(0, limit, shape).astype("int32")


def dims(draw: Draw, shape: tuple[int, ...], low: int = 0) -> list[int]:
    """Some of a tensor's dims, each once, in any order."""
    return list(order(draw, len(shape))[: draw(integers(min(low, len(shape)), len(shape)))])


def one(draw: Draw, *options: Any) -> Any:
    return options[draw(integers(0, len(options) - 1))]


@cache
def integers(low: int, high: int) -> st.SearchStrategy[int]:
    """st.integers, made once: to make and check a strategy takes longer than to draw from it."""
    return st.integers(low, high)


def order(draw: Draw, many: int) -> tuple[int, ...]:
    """A permutation of range(many)."""
    left = list(range(many))
    return tuple(left.pop(draw(integers(0, len(left) - 1))) for _ in range(many))


@family
def elementwise(draw: Draw) -> Case:
    shape = draw(shapes())
    fn = one(draw, lax.mul, lax.add, lax.sub, lax.max, lax.atan2, lax.pow)
    other = one(draw, shape, tuple(one(draw, 1, n) for n in shape), ())
    return Case(fn, [fill(draw, *shape), fill(draw, *other)], f"{fn.__name__} {shape} {other}")


@family
def select(draw: Draw) -> Case:
    shape = draw(shapes())
    which = one(draw, shape, ())
    pred = np.zeros(which, bool)

    def both(p: Any, x: Any, y: Any) -> Any:  # each choice is needed for some predicate
        return lax.select_n(p, x, y) + 3 * lax.select_n(lax.bitwise_not(p), x, y)

    return Case(both, [pred, fill(draw, *shape), fill(draw, *shape) + 500])


@family
def clamp(draw: Draw) -> Case:
    shape = draw(shapes())
    low = fill(draw, *one(draw, shape, ()))
    return Case(lax.clamp, [low - 90, fill(draw, *shape) / 300, low + 90])


@family
def barrier(draw: Draw) -> Case:
    inputs = [fill(draw, *draw(shapes(0))) for _ in range(draw(integers(1, 3)))]
    return Case(lambda *xs: lax.optimization_barrier(xs), inputs)


@family
def reshape(draw: Draw) -> Case:
    shape = draw(shapes(1, 3, 8))
    other = refactored(draw, prod(shape))
    axes = one(draw, None, order(draw, len(shape)))
    return Case(lambda x: lax.reshape(x, other, axes), [fill(draw, *shape)], f"{shape}->{other}")


def refactored(draw: Draw, size: int) -> tuple[int, ...]:
    """A shape of `size` elements."""
    out = []
    while size > 1 and len(out) < 3:
        part = one(draw, *[d for d in range(1, size + 1) if size % d == 0])
        out.append(part)
        size //= part
    return (*out, size) if size > 1 or not out else tuple(out)


@family
def transpose(draw: Draw) -> Case:
    shape = draw(shapes())
    axes = order(draw, len(shape))
    return Case(lambda x: lax.transpose(x, axes), [fill(draw, *shape)])


@family
def broadcast(draw: Draw) -> Case:
    shape = draw(shapes())
    kept = sorted(dims(draw, shape))
    inner = tuple(one(draw, 1, shape[d]) for d in kept)
    return Case(lambda x: lax.broadcast_in_dim(x, shape, kept), [fill(draw, *inner)])


@family
def squeeze(draw: Draw) -> Case:
    shape = draw(shapes(1, 4, 2))
    gone = [d for d, n in enumerate(shape) if n == 1 and draw(st.booleans())]
    return Case(lambda x: lax.expand_dims(lax.squeeze(x, gone), (0,)), [fill(draw, *shape)])


@family
def reduce(draw: Draw) -> Case:
    shape = draw(shapes())
    fn = one(draw, jnp.sum, jnp.max, jnp.min, jnp.prod)
    axes = tuple(dims(draw, shape))
    return Case(lambda x: fn(x, axis=axes), [fill(draw, *shape)])


@family
def general_reduce(draw: Draw) -> Case:
    shape = draw(shapes())
    axes = tuple(dims(draw, shape, 1))

    def fn(x: Any, y: Any) -> Any:
        return lax.reduce(
            (x, y),
            (np.float32(0), np.float32(0)),
            lambda a, b: (a[0] + b[0] + 0 * b[1], a[1] + b[1] + 0 * b[0]),
            axes,
        )

    return Case(fn, [fill(draw, *shape), fill(draw, *shape)])


@family
def reduce_bits(draw: Draw) -> Case:
    shape = draw(shapes())
    fn, start = one(draw, (lax.bitwise_xor, 0), (lax.bitwise_or, 0), (lax.bitwise_and, -1))
    axes = tuple(dims(draw, shape))
    x = np.full(shape, 0 if start == 0 else 127, "int32")
    return Case(lambda x: lax.reduce(x, np.int32(start), fn, axes), [x])


@family
def arg(draw: Draw) -> Case:
    shape = draw(shapes())
    axis = draw(integers(0, len(shape) - 1))
    fn = one(draw, lax.argmax, lax.argmin)
    return Case(lambda x: fn(x, axis, np.int32), [fill(draw, *shape)], f"{fn.__name__} {shape}")


@family
def dot(draw: Draw) -> Case:
    sizes = [draw(shapes(0, n, 3)) for n in (2, 2, 1, 1)]
    batch, summed, rows, columns = sizes
    left = order(draw, len(batch + summed + rows))
    right = order(draw, len(batch + summed + columns))
    lhs = np.transpose(fill(draw, *batch, *summed, *rows), left)
    rhs = np.transpose(fill(draw, *batch, *summed, *columns), right)
    b, k = range(len(batch)), range(len(batch), len(batch + summed))
    numbers = (
        ([left.index(i) for i in k], [right.index(i) for i in k]),
        ([left.index(i) for i in b], [right.index(i) for i in b]),
    )
    return Case(lambda x, y: lax.dot_general(x, y, numbers), [lhs, rhs], f"{numbers}")


@family
def slice_(draw: Draw) -> Case:
    shape = draw(shapes(1, 3, 12))
    start = [draw(integers(0, n - 1)) for n in shape]
    stop = [draw(integers(s + 1, n)) for s, n in zip(start, shape, strict=True)]
    stride = [one(draw, 1, 2, 3) for _ in shape]
    what = f"{shape} {start} {stop} {stride}"
    return Case(lambda x: lax.slice(x, start, stop, stride), [fill(draw, *shape)], what)


@family
def even_slice(draw: Draw) -> Case:
    """Halves, quarters, every second element: what rotary embeddings take."""
    part, many = one(draw, 2, 3, 4), one(draw, 2, 3)
    at = draw(integers(0, many - 1))
    shape = (2, part * many)
    if draw(st.booleans()):
        return Case(lambda x: lax.slice_in_dim(x, at, None, many, axis=1), [fill(draw, *shape)])
    return Case(
        lambda x: lax.slice_in_dim(x, at * part, (at + 1) * part, axis=1), [fill(draw, *shape)]
    )


@family
def pad(draw: Draw) -> Case:
    shape = draw(shapes(1, 2, 6))
    config = []
    for n in shape:
        low, high = draw(integers(-2, 6)), draw(integers(-2, 6))
        interior = one(draw, 0, 0, 1, 2)
        if n + (n - 1) * interior + low + high < 1:
            low = high = 0
        config.append((low, high, interior))
    return Case(lambda x, v: lax.pad(x, v, config), [fill(draw, *shape), fill(draw)], f"{config}")


@family
def dynamic_slice(draw: Draw) -> Case:
    shape = draw(shapes())
    sizes = [one(draw, n, draw(integers(1, n))) for n in shape]
    starts = [indices(draw, n) for n in shape]
    return Case(lambda x, *s: lax.dynamic_slice(x, s, sizes), [fill(draw, *shape), *starts])


@family
def dynamic_update_slice(draw: Draw) -> Case:
    shape = draw(shapes())
    sizes = [one(draw, n, draw(integers(1, n))) for n in shape]
    starts = [indices(draw, n) for n in shape]
    inputs = [fill(draw, *shape), fill(draw, *sizes) + 1, *starts]
    return Case(lambda x, u, *s: lax.dynamic_update_slice(x, u, s), inputs)


@family
def concatenate(draw: Draw) -> Case:
    shape = draw(shapes())
    at = draw(integers(0, len(shape) - 1))
    parts = [
        fill(draw, *shape[:at], draw(integers(1, 6)), *shape[at + 1 :])
        for _ in range(draw(integers(1, 3)))
    ]
    return Case(lambda *xs: lax.concatenate(xs, at), parts)


@family
def split(draw: Draw) -> Case:
    shape = draw(shapes())
    at = draw(integers(0, len(shape) - 1))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    x = fill(draw, *shape[:at], sum(sizes), *shape[at + 1 :])
    return Case(lambda x: lax.split(x, sizes, at), [x], f"{sizes} at {at} of {shape}")


@family
def stack(draw: Draw) -> Case:
    shape = draw(shapes(0, 2))
    at = draw(integers(0, len(shape)))
    many = draw(integers(1, 3))
    if draw(st.booleans()):
        return Case(lambda *xs: jnp.stack(xs, at), [fill(draw, *shape) for _ in range(many)])
    return Case(lambda x: jnp.unstack(x, axis=at), [fill(draw, *shape[:at], many, *shape[at:])])


@family
def tile(draw: Draw) -> Case:
    shape = draw(shapes(1, 2))
    reps = tuple(draw(integers(1, 3)) for _ in shape)
    return Case(lambda x: jnp.tile(x, reps), [fill(draw, *shape)])


@family
def rev(draw: Draw) -> Case:
    shape = draw(shapes())
    which = dims(draw, shape)
    return Case(lambda x: lax.rev(x, which), [fill(draw, *shape)])
