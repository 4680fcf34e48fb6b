"""Within which range integers must lie so that what they index is there.

Every integer of a program lies in an interval that follows from those of the arguments
(`cfp.segments.intervals`), through loops and into the bodies of control flow. An index is right
where its interval lies in what may be indexed. The range [low, high) of an argument is the longest
for which as many indices as possible are right: `low` is 0, or what brings an index into its place;
`high` is found by bisection, as a longer range is never right where a shorter one is not.

A comparison with an iota (`one_hot`) counts as an index, after all real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from cfp.segments.intervals import RULES, results_of
from cfp.segments.spans import (
    ANYTHING,
    Lanes,
    Operation,
    Span,
    aligned,
    constant,
    joined,
    limits,
)
from cfp.trace import Graph
from cfp.trace.inline import CALLS

CONSTANTS = 8  # tried as where a range begins; each takes a pass over what follows from it
SOURCES = frozenset({"iota", "argmax", "argmin", "top_k"})  # whatever their operands are


@dataclass(frozen=True, slots=True)
class Use:
    """An index: where it may lie, where it lies, and whether it is a real one."""

    allowed: Span
    lies: Span
    real: bool

    @property
    def right(self) -> bool:
        return self.lies.within(self.allowed)


def index_ranges(graph: Graph, roots: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Returns the range [low, high) of each of the values that indexes something; others have
    none."""
    cone = _Cone(graph, roots)
    return {root: found for root in roots if (found := cone.settle(root)) is not None}


class _Cone:
    """The equations that indices depend on, and what is known of the roots so far."""

    def __init__(self, graph: Graph, roots: Sequence[int]) -> None:
        self.graph = graph
        self.known: dict[int, Lanes] = {
            root: _unsettled(graph.values[root].dtype) for root in roots
        }
        self.env: dict[int, Lanes] = {}
        self.equations = self._ancestors()
        self._run(self.equations, self.env)

    def _ancestors(self) -> list[int]:
        ends = {e.index for e in self.graph.equations if _indexes(e.op.primitive, e.op.params)}
        followed: set[int] = set()
        todo = [(end, False) for end in ends]
        while todo:
            e, in_full = todo.pop()
            for value in self.graph.equations[e].inputs:
                found = self.graph.values[value]
                whole = in_full or not jnp.issubdtype(found.dtype, np.inexact)
                if found.producer is None or value in self.known or not whole:
                    continue
                if found.producer not in followed:
                    followed.add(found.producer)
                    primitive = self.graph.equations[found.producer].primitive
                    if primitive in RULES and primitive not in SOURCES:
                        todo.append((found.producer, True))
        return sorted(ends | followed)

    def _after(self, root: int) -> list[int]:
        """Returns the equations that depend on a root."""
        reached = {root}
        found = []
        for e in self.equations:
            equation = self.graph.equations[e]
            if not reached.isdisjoint(equation.inputs):
                found.append(e)
                reached.update(v for v in equation.outputs if v not in self.known)
        return found

    def _run(self, equations: Iterable[int], env: dict[int, Lanes]) -> list[Use]:
        uses: list[Use] = []
        for e in equations:
            equation, op = self.graph.equations[e], self.graph.equations[e].op
            plain = Operation(op.primitive, op.params, op.in_shapes, op.out_shapes, op.out_dtypes)
            operands = [self._lanes(value, env) for value in equation.inputs]
            env.update(zip(equation.outputs, _apply(plain, operands, uses), strict=True))
        return uses

    def _lanes(self, value: int, env: Mapping[int, Lanes]) -> Lanes:
        for found in (self.known, env):
            if value in found:
                return found[value]
        constants = self.graph.constants
        return constant(constants[value]) if value in constants else ANYTHING

    def _starts(
        self, after: Iterable[int], holds: Span, uses: Callable[[int, int], list[Use]]
    ) -> list[int]:
        """Returns where a range may begin: 0, 1, the constants that the root meets (`x - 1000`),
        and what moves a first index to where it may be. Starts from which nothing is indexed are
        left out."""
        met = {
            int(end)
            for e in after
            for value in self.graph.equations[e].inputs
            if value in self.graph.constants
            for lane in constant(self.graph.constants[value])
            if lane is not None and math.isfinite(lane.low)
            for end in (lane.low, -lane.low)
        }
        starts = dict.fromkeys((0, 1, *sorted(met, key=abs)[:CONSTANTS]))
        first = [use for start in (0, 1) for use in uses(start, start + 1)]
        starts |= dict.fromkeys(math.ceil(use.allowed.low - use.lies.low) for use in first)
        return [
            start for start in starts if holds.low <= start <= holds.high and uses(start, start + 1)
        ]

    def settle(self, root: int) -> tuple[int, int] | None:
        """Returns the range of a root, which is known from now on."""
        dtype = self.graph.values[root].dtype
        if not jnp.issubdtype(dtype, np.integer):
            return None
        after = self._after(root)

        def uses(low: int, high: int) -> list[Use]:
            self.known[root] = (Span(low, high - 1),)
            return self._run(after, dict(self.env))

        def score(low: int, high: int) -> tuple[int, int]:
            right = [use.real for use in uses(low, high) if use.right]
            return sum(right), len(right)

        starts = self._starts(after, limits(dtype), uses)
        points = {start: score(start, start + 1) for start in starts}
        self.known[root] = _unsettled(dtype)
        if not starts:
            return None
        best = max(points.values())
        most = max(int(use.allowed.high) for start in starts for use in uses(start, start + 1)) + 1
        last = int(limits(dtype).high) + 1
        found = [
            (start, _last(start, min(start + most, last), lambda *at: score(*at) == best))
            for start in starts
            if points[start] == best
        ]
        # zero alone is no range to choose, and negative numbers are rarely meant
        low, high = max(found, key=lambda at: (at[0] >= 0 and at[1] - at[0] > 1, at[1] - at[0]))
        self.known[root] = (Span(low, high - 1),)
        self._run(after, self.env)
        return low, high


def _last(low: int, most: int, holds: Callable[[int, int], bool]) -> int:
    """Returns the largest end up to `most` for which `holds` is true, as it is for `low + 1`."""
    right, wrong = low + 1, most + 1
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (middle, wrong) if holds(low, middle) else (right, middle)
    return right


def _unsettled(dtype: Any) -> Lanes:
    """Bounds an argument whose range is not known yet: by the least, so that others have room."""
    if dtype == np.bool_:
        return (Span(0, 1),)
    return (Span(0, 0),) if jnp.issubdtype(dtype, np.integer) else ANYTHING


def _apply(op: Operation, operands: Sequence[Lanes], uses: list[Use]) -> list[Lanes]:
    """Returns the lanes of an operation's results; what it indexes is added to `uses`."""
    if op.primitive in ENDS:
        for operand, allowed, real in ENDS[op.primitive](op, operands):
            for lane, span in zip(*aligned(operands[operand], allowed), strict=True):
                if lane is not None and span is not None:
                    uses.append(Use(span, lane, real))
    bodies = list(_bodies(op.primitive, op.params, operands))
    results = [_run_body(body, given, uses) for body, given in bodies]
    if op.primitive == "cond":
        return [
            joined(lane for lanes in same for lane in lanes) for same in zip(*results, strict=True)
        ]
    if op.primitive in CALLS:
        return results[0]
    return results_of(op, operands)


# --- control flow ----------------------------------------------------------------------------


def _bodies(
    primitive: str, params: Mapping[str, Any], operands: Sequence[Lanes]
) -> Iterator[tuple[Any, Sequence[Lanes]]]:
    """Yields the jaxprs that an operation runs, and on what; what a loop carries is taken as at its
    start."""
    if primitive in CALLS:
        yield params[CALLS[primitive]], operands
    elif primitive == "cond":
        for branch in params["branches"]:
            yield branch, operands[1:]
    elif primitive == "scan":
        yield params["jaxpr"], operands
    elif primitive == "while":
        skipped = params["cond_nconsts"]
        yield params["body_jaxpr"], operands[skipped:]


def _run_body(callee: Any, operands: Sequence[Lanes], uses: list[Use]) -> list[Lanes]:
    jaxpr = getattr(callee, "jaxpr", callee)
    env: dict[Any, Lanes] = {
        var: lanes if len(lanes) == 1 or var.aval.shape[-1:] == (len(lanes),) else joined(lanes)
        for var, lanes in zip(jaxpr.invars, operands, strict=True)
    }
    for var, array in zip(jaxpr.constvars, getattr(callee, "consts", ()), strict=True):
        env[var] = constant(array)

    def read(atom: Any) -> Lanes:
        return constant(atom.val) if hasattr(atom, "val") else env[atom]

    for eqn in jaxpr.eqns:
        op = Operation(
            eqn.primitive.name,
            eqn.params,
            [tuple(atom.aval.shape) for atom in eqn.invars],
            [tuple(var.aval.shape) for var in eqn.outvars],
            [var.aval.dtype for var in eqn.outvars],
        )
        results = _apply(op, [read(atom) for atom in eqn.invars], uses)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _indexes(primitive: str, params: Mapping[str, Any]) -> bool:
    """Returns whether an operation indexes, itself or in what it runs."""
    if primitive in ENDS:
        return True
    return any(
        _indexes(eqn.primitive.name, eqn.params)
        for callee, _ in _bodies(primitive, params, ())
        for eqn in getattr(callee, "jaxpr", callee).eqns
    )


# --- what indexes what -----------------------------------------------------------------------

End = tuple[int, Lanes, bool]  # which operand, where it may lie, whether it is a real index


def _gather(op: Operation, operands: Sequence[Lanes]) -> Iterator[End]:
    shape, sizes = op.in_shapes[0], op.params["slice_sizes"]
    dims = op.params["dimension_numbers"].start_index_map
    yield 1, tuple(Span(0, shape[dim] - sizes[dim]) for dim in dims) or ANYTHING, True


def _scatter(op: Operation, operands: Sequence[Lanes]) -> Iterator[End]:
    shape, _, updates = op.in_shapes
    numbers = op.params["dimension_numbers"]
    points = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [dim for dim in range(len(shape)) if dim not in points]
    sizes = dict(zip(windows, (updates[dim] for dim in numbers.update_window_dims), strict=True))
    dims = numbers.scatter_dims_to_operand_dims
    yield 1, tuple(Span(0, shape[dim] - sizes.get(dim, 1)) for dim in dims) or ANYTHING, True


def _dynamic_slice(op: Operation, operands: Sequence[Lanes]) -> Iterator[End]:
    for dim, (size, taken) in enumerate(
        zip(op.in_shapes[0], op.params["slice_sizes"], strict=True)
    ):
        yield 1 + dim, (Span(0, size - taken),), True


def _dynamic_update_slice(op: Operation, operands: Sequence[Lanes]) -> Iterator[End]:
    for dim, (size, put) in enumerate(zip(*op.in_shapes[:2], strict=True)):
        yield 2 + dim, (Span(0, size - put),), True


def _one_hot(op: Operation, operands: Sequence[Lanes]) -> Iterator[End]:
    for one, other in ((0, 1), (1, 0)):
        (lane,) = joined(operands[other])
        if lane is not None and lane.iota:
            yield one, (lane,), False


SCATTERS = (
    "",
    "-add",
    "_add",
    "-sub",
    "_sub",
    "-mul",
    "_mul",
    "-min",
    "_min",
    "-max",
    "_max",
    "_apply",
)
ENDS: Mapping[str, Callable[[Operation, Sequence[Lanes]], Iterator[End]]] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "eq": _one_hot,
    **{f"scatter{kind}": _scatter for kind in SCATTERS},
}
