"""Runs equations of a `Graph`, one primitive after another.

Under `jax.jit` this rebuilds a program; called on arrays it computes op by op, so the same
equations give the same bits however they are grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from cfp.trace.graph import Equation


def bind(equation: Equation, operands: Iterable[Any]) -> list[Any]:
    """Applies the equation's primitive. Loop pseudo-operations are not for this function."""
    primitive = equation.op.primitive_object
    with equation.origin.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.op.params))
    return list(results) if primitive.multiple_results else [results]


def run_straight(equations: Iterable[Equation], env: MutableMapping[int, Any]) -> None:
    """Runs equations outside loops in order, reading and writing `env` by value index."""
    for equation in equations:
        results = bind(equation, (env[value] for value in equation.inputs))
        env.update(zip(equation.outputs, results, strict=True))
