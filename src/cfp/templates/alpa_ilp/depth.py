"""Which operand an operation follows: the one that can be cut finest, then the deepest.

Depth counts operations from the arguments (BuildInstructionDepthMap): a contraction weighs 1000,
a reduction starts again at 0 and a broadcast steps back by 5, so that what meets a norm's
statistics follows the activation instead; a reshape weighs nothing, anything else 1. The priority
of an operand (ChooseOperandToFollow) is

    the most parts any of its node's layouts has  +  depth * 0.1 / (largest depth)

and a later operand must exceed the best so far by four steps of depth. A scalar that an
elementwise operation spreads is never followed: in Alpa it would be a broadcast with a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cfp.templates.alpa_ilp.ways import is_contraction
from cfp.trace import LOOP_PRIMITIVES, Equation, Graph

_FREE = frozenset({"reshape", "squeeze", "expand_dims", *LOOP_PRIMITIVES})
_STEPS = 4  # Alpa's range_delta


def depths(graph: Graph) -> list[int]:
    """Returns the depth of every value."""
    found = [0] * len(graph.values)
    for equation in graph.equations:
        before = max((found[value] for value in equation.inputs), default=0)
        for value in equation.outputs:
            found[value] = _depth(equation, before)
    return found


def choose(
    operands: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    priority: Callable[[int], float],
    step: float,
    alias: int | None,
) -> int:
    """Returns the operand to follow. Operands after `alias`, the argument that the result replaces,
    do not count."""
    candidates = [operand for operand in operands if shapes[operand]] or list(operands)
    best, highest = candidates[0], priority(candidates[0])
    for operand in candidates:
        if (value := priority(operand)) > highest + _STEPS * step:
            best, highest = operand, value
        if operand == alias:
            break
    return best


def _depth(equation: Equation, before: int) -> int:
    name = equation.primitive
    if is_contraction(equation.op):
        return before + 1000
    if name.startswith("reduce_") and name != "reduce_precision":
        return 0
    if name in ("argmax", "argmin", "reduce"):
        return 0
    if name == "broadcast_in_dim":
        return before - 5
    return before if name in _FREE else before + 1
