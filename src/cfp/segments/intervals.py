"""Interval arithmetic: in which interval the results of an operation lie, a rule per primitive.

A rule has the lanes of the operands (`cfp.segments.spans`) and returns those of the results. Where
no rule knows the operation, anything is possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from cfp.segments.spans import (
    ANYTHING,
    LANES,
    Lane,
    Lanes,
    Operation,
    Span,
    aligned,
    fitted,
    joined,
)
from cfp.trace import LOOP_PRIMITIVES

BITS = 64  # of the widest integer: nobody shifts further


def results_of(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Returns the lanes of an operation's results."""
    rule = RULES.get(op.primitive)
    results = [ANYTHING] * len(op.out_shapes) if rule is None else rule(op, operands)
    return [fitted(*one) for one in zip(results, op.out_shapes, op.out_dtypes, strict=True)]


Rule = Callable[[Operation, Sequence[Lanes]], list[Lanes]]


def _elementwise(of: Callable[..., Lane]) -> Rule:
    """Returns the rule of a function of spans, all of which are known."""

    def rule(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
        lanes = zip(*aligned(*operands), strict=True)
        return [tuple(None if None in spans else of(*spans) for spans in lanes)]

    return rule


def _corners(of: Callable[[float, float], float]) -> Rule:
    """Returns the rule of a function of two numbers that is monotone in each."""

    def spans(a: Span, b: Span) -> Span:
        found = [of(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Span(min(found), max(found))

    return _elementwise(spans)


def _monotone(of: Callable[[float], float]) -> Rule:
    return _elementwise(lambda a: Span(min(of(a.low), of(a.high)), max(of(a.low), of(a.high))))


def _compared(of: Callable[[Span, Span], bool | None]) -> Rule:
    def spans(a: Span, b: Span) -> Span:
        answer = of(a, b)
        return Span(0, 1) if answer is None else Span(int(answer), int(answer))

    return _elementwise(spans)


def _less(a: Span, b: Span) -> bool | None:
    return True if a.high < b.low else False if a.low >= b.high else None


def _equal(a: Span, b: Span) -> bool | None:
    if a.high < b.low or b.high < a.low:
        return False
    return True if a.low == a.high == b.low == b.high else None


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _kept(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Returns the numbers of the first operand for every result, its last dim perhaps elsewhere."""
    lanes = operands[0]
    before = op.in_shapes[0][-1:]
    return [lanes if shape[-1:] == before else joined(lanes) for shape in op.out_shapes]


def _mixed(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Returns some of the numbers of the first operand for every result."""
    return [joined(operands[0])] * len(op.out_shapes)


def _each(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Returns for every result the numbers of its operand, in any order."""
    return [joined(lanes) for lanes in operands[: len(op.out_shapes)]]


def _broadcast(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (shape,), dims = op.out_shapes, op.params["broadcast_dimensions"]
    stays = dims and dims[-1] == len(shape) - 1 and op.in_shapes[0][-1] == shape[-1]
    return [operands[0] if stays else joined(operands[0])]


def _concatenate(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    last = len(op.out_shapes[0]) - 1
    if op.params["dimension"] != last or op.out_shapes[0][-1] > LANES:
        return [joined(lane for lanes in operands for lane in lanes)]
    sizes = [shape[-1] for shape in op.in_shapes]
    pairs = zip(operands, sizes, strict=True)
    return [tuple(x for lanes, n in pairs for x in (lanes if len(lanes) == n else lanes * n))]


def _stack(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if op.params["axis"] != len(op.out_shapes[0]) - 1 or len(operands) > LANES:
        return [joined(lane for lanes in operands for lane in lanes)]
    return [tuple(joined(lanes)[0] for lanes in operands)]


def _select(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    which, *cases = aligned(*operands)
    found = []
    for choice, *spans in zip(which, *cases, strict=True):
        if choice is not None and choice.low == choice.high:
            found.append(spans[int(choice.low)])
        else:
            found.append(joined(spans)[0])
    return [tuple(found)]


def _either(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Returns numbers of the first or of the last operand."""
    return [joined((*operands[0], *operands[-1]))]


def _iota(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    dim, shape = op.params["dimension"], op.params["shape"]
    return [(Span(0, max(shape[dim] - 1, 0), iota=True),)]


def _position(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    size = math.prod(op.in_shapes[0][axis] for axis in op.params["axes"])
    return [(Span(0, max(size - 1, 0)),)]


def _top_k(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    size = op.in_shapes[0][op.params.get("axis", -1)]
    return [joined(operands[0]), (Span(0, max(size - 1, 0)),)]


def _sum(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Bounds the sum of all numbers along the axes, or of the first few (`cumsum`)."""
    (lane,) = joined(operands[0])
    if lane is None:
        return [ANYTHING]
    axes = op.params["axes"] if "axes" in op.params else (op.params["axis"],)
    count = math.prod(op.in_shapes[0][axis] for axis in axes)
    least = 1 if "axis" in op.params else count
    ends = [times * end for times in (least, count) for end in (lane.low, lane.high)]
    return [(Span(min(ends), max(ends)),)]


def _converted(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not jnp.issubdtype(op.out_dtypes[0], np.integer):
        return [operands[0]]
    ends = [
        None if a is None or not math.isfinite(a.high - a.low) else (int(a.low), int(a.high), a)
        for a in operands[0]
    ]
    return [tuple(None if end is None else Span(*end[:2], iota=end[2].iota) for end in ends)]


def _remainder(a: Span, b: Span) -> Lane:
    """Bounds the remainder, which has the sign of the dividend, as in C."""
    if b.low <= 0 <= b.high:
        return None
    most = max(abs(b.low), abs(b.high)) - 1
    return Span(max(min(a.low, 0), -most), min(max(a.high, 0), most))


def _quotient(op: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    whole = jnp.issubdtype(op.out_dtypes[0], np.integer)  # towards zero, as in C

    def spans(a: Span, b: Span) -> Lane:
        if b.low <= 0 <= b.high:
            return None
        found = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
        low, high = min(found), max(found)
        return Span(math.trunc(low), math.trunc(high)) if whole else Span(low, high)

    return _elementwise(spans)(op, operands)


def _bits_and(a: Span, b: Span) -> Lane:
    if min(a.low, b.low) < 0:
        return None
    alone = a.low == a.high and b.low == b.high
    return Span(int(a.low) & int(b.low) if alone else 0, min(a.high, b.high))


def _shifted(of: Callable[[int, int], int]) -> Rule:
    def spans(a: Span, b: Span) -> Lane:
        if min(a.low, b.low) < 0 or b.high > BITS:
            return None
        found = [of(int(x), int(y)) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Span(min(found), max(found))

    return _elementwise(spans)


RULES: Mapping[str, Rule] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "max": _corners(max),
    "min": _corners(min),
    "clamp": _elementwise(
        lambda a, x, b: Span(min(max(x.low, a.low), b.low), min(max(x.high, a.high), b.high))
    ),
    "neg": _monotone(lambda x: -x),
    "floor": _monotone(math.floor),
    "ceil": _monotone(math.ceil),
    "round": _monotone(round),
    "abs": _elementwise(lambda a: Span(max(a.low, -a.high, 0), max(abs(a.low), abs(a.high)))),
    "sign": _elementwise(lambda a: Span(*((x > 0) - (x < 0) for x in (a.low, a.high)))),
    "rem": _elementwise(_remainder),
    "div": _quotient,
    "shift_left": _shifted(lambda x, y: x << y),
    "shift_right_arithmetic": _shifted(lambda x, y: x >> y),
    "shift_right_logical": _shifted(lambda x, y: x >> y),
    "and": _elementwise(_bits_and),
    "or": _elementwise(lambda a, b: Span(0, 1) if max(a.high, b.high) <= 1 else None),
    "not": _elementwise(
        lambda a: Span(1 - a.high, 1 - a.low) if 0 <= a.low <= a.high <= 1 else None
    ),
    "lt": _compared(_less),
    "ge": _compared(lambda a, b: _not(_less(a, b))),
    "gt": _compared(lambda a, b: _less(b, a)),
    "le": _compared(lambda a, b: _not(_less(b, a))),
    "eq": _compared(_equal),
    "ne": _compared(lambda a, b: _not(_equal(a, b))),
    "select_n": _select,
    "convert_element_type": _converted,
    "iota": _iota,
    "argmax": _position,
    "argmin": _position,
    "top_k": _top_k,
    "cumsum": _sum,
    "reduce_sum": _sum,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "stack": _stack,
    "dynamic_update_slice": _either,
    "scatter": _either,
    "pad": _either,
    "sort": _each,
    "optimization_barrier": _each,
    **dict.fromkeys(
        ("copy", "copy_p", "reshape", "slice", "dynamic_slice", "stop_gradient"), _kept
    ),
    **dict.fromkeys(("device_put", "sharding_constraint", *LOOP_PRIMITIVES), _kept),
    **dict.fromkeys(
        ("squeeze", "expand_dims", "transpose", "rev", "split", "unstack", "tile", "gather"), _mixed
    ),
    **dict.fromkeys(("reduce_max", "reduce_min", "cummax", "cummin"), _mixed),
}
