"""Equations in numpy: on tiny tensors this is far cheaper than compiling each of them.

`run` does what `cfp.trace.evaluate.run_straight` does, and falls back on it for primitives that
have no line here; `test_random` compares the two.
"""

import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from cfp.trace import Equation
from cfp.trace.evaluate import run_straight

Params = Mapping[str, Any]
Rule = Callable[..., Any]  # (params, *operands) -> result, or a list of results


def run(equations: Iterable[Equation], env: dict[int, Any]) -> None:
    """Runs equations in order, reading and writing `env` by value index."""
    with np.errstate(all="ignore"):
        for equation in equations:
            rule = RULES.get(equation.primitive)
            if rule is None:
                _fall_back(equation, env)
                continue
            results = rule(equation.op.params, *(env[value] for value in equation.inputs))
            results = results if isinstance(results, list) else [results]
            dtypes = equation.op.out_dtypes
            for value, result, dtype in zip(equation.outputs, results, dtypes, strict=True):
                env[value] = np.asarray(result, dtype)


def _fall_back(equation: Equation, env: dict[int, Any]) -> None:
    mine = {value: jnp.asarray(env[value]) for value in equation.inputs}
    run_straight([equation], mine)
    env.update((value, np.asarray(mine[value])) for value in equation.outputs)


def _dot_general(p: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (cx, cy), (bx, by) = p["dimension_numbers"]
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in x.shape]
    right = [next(letters) for _ in y.shape]
    for i, j in (*zip(cx, cy, strict=True), *zip(bx, by, strict=True)):
        right[j] = left[i]
    out = [left[i] for i in bx]
    out += [c for i, c in enumerate(left) if i not in cx and i not in bx]
    out += [c for j, c in enumerate(right) if j not in cy and j not in by]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", x, y)


def _broadcast(p: Params, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(p["shape"])
    for d, size in zip(p["broadcast_dimensions"], x.shape, strict=True):
        shape[d] = size
    return np.broadcast_to(x.reshape(shape), p["shape"])


def _slice(p: Params, x: np.ndarray) -> np.ndarray:
    strides = p["strides"] or (1,) * x.ndim
    parts = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return x[tuple(slice(*part) for part in parts)]


def _pad(p: Params, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    config = p["padding_config"]
    sizes = [lo + hi + max(0, n + (n - 1) * gap) for n, (lo, hi, gap) in zip(x.shape, config)]  # noqa: B905
    out = np.full(sizes, value, x.dtype)
    at = [slice(lo, lo + n + (n - 1) * gap, gap + 1) for n, (lo, _, gap) in zip(x.shape, config)]  # noqa: B905
    out[tuple(at)] = x
    return out


def _split(p: Params, x: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.cumsum(p["sizes"])[:-1], axis=p["axis"])


def _sort(p: Params, *xs: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(xs[0], axis=p["dimension"], kind="stable")
    return [np.take_along_axis(x, order, axis=p["dimension"]) for x in xs]


def _cumsum(p: Params, x: np.ndarray) -> np.ndarray:
    if not p["reverse"]:
        return np.cumsum(x, axis=p["axis"])
    return np.flip(np.cumsum(np.flip(x, p["axis"]), axis=p["axis"]), p["axis"])


def _gather(p: Params, x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    numbers, sizes = p["dimension_numbers"], p["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    batch = starts.shape[:-1]
    out = np.empty((*batch, *(n for d, n in enumerate(sizes) if d not in gone)), x.dtype)
    for index in np.ndindex(*batch):
        at = [0] * x.ndim
        for d, start in zip(numbers.start_index_map, starts[index], strict=True):
            at[d] = int(np.clip(start, 0, x.shape[d] - sizes[d]))
        pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        for d, b in pairs:
            at[d] = index[b]
        taken = x[tuple(slice(a, a + n) for a, n in zip(at, sizes, strict=True))]
        out[index] = taken.reshape(out.shape[len(batch) :])
    rank, offsets = out.ndim, numbers.offset_dims
    order = [d for d in range(rank) if d not in offsets]  # where the batch dims go
    return np.moveaxis(out, range(rank), [*order, *offsets])


def _select(p: Params, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    which = np.broadcast_to(which, cases[0].shape)
    return np.choose(which.astype(int), cases)


def _iota(p: Params) -> np.ndarray:
    shape = [1] * len(p["shape"])
    shape[p["dimension"]] = -1
    return np.broadcast_to(np.arange(p["shape"][p["dimension"]]).reshape(shape), p["shape"])


def _plain(fn: Callable[..., Any]) -> Rule:
    return lambda p, *xs: fn(*xs)


RULES: dict[str, Rule] = {
    "dot_general": _dot_general,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "squeeze": lambda p, x: np.squeeze(x, p["dimensions"]),
    "expand_dims": lambda p, x: np.expand_dims(x, p["dimensions"]),
    "transpose": lambda p, x: np.transpose(x, p["permutation"]),
    "slice": _slice,
    "pad": _pad,
    "split": _split,
    "unstack": lambda p, x: list(np.moveaxis(x, p["axis"], 0)),
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]),
    "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "cumsum": _cumsum,
    "sort": _sort,
    "gather": _gather,
    "select_n": _select,
    "iota": _iota,
    "reduce_sum": lambda p, x: np.sum(x, axis=tuple(p["axes"])),
    "reduce_max": lambda p, x: np.max(x, axis=tuple(p["axes"])),
    "reduce_min": lambda p, x: np.min(x, axis=tuple(p["axes"])),
    "argmax": lambda p, x: np.argmax(x, axis=p["axes"][0]),
    "integer_pow": lambda p, x: x ** p["y"],
    "convert_element_type": lambda p, x: x,
    "copy": lambda p, x: x,
    "stop_gradient": lambda p, x: x,
    "rsqrt": lambda p, x: 1 / np.sqrt(x),
    "logistic": lambda p, x: 1 / (1 + np.exp(-x)),
    "add_any": _plain(np.add),
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "div": _plain(np.divide),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "neg": _plain(np.negative),
    "exp": _plain(np.exp),
    "log": _plain(np.log),
    "tanh": _plain(np.tanh),
    "sqrt": _plain(np.sqrt),
    "square": _plain(np.square),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "and": _plain(np.logical_and),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
}
