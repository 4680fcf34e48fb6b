"""What an operation indexes, and where the index must lie: a rule per primitive.

`apply` runs an operation on lanes of spans and notes its indices as `Use`s, also those in the
jaxprs that it runs: calls, and the bodies of control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cfp.segments.intervals import results_of
from cfp.segments.spans import ANYTHING, Lanes, Operation, Span, aligned, constant, joined
from cfp.trace.inline import CALLS


@dataclass(frozen=True, slots=True)
class Use:
    """An index: where it may lie, where it lies, and whether it is a real one."""

    allowed: Span
    lies: Span
    real: bool

    @property
    def right(self) -> bool:
        return self.lies.within(self.allowed)


def apply(op: Operation, operands: Sequence[Lanes], uses: list[Use]) -> list[Lanes]:
    """Returns the lanes of an operation's results; what it indexes is added to `uses`."""
    if op.primitive in INDEXING:
        for operand, allowed, real in INDEXING[op.primitive](op, operands):
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
        results = apply(op, [read(atom) for atom in eqn.invars], uses)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def indexes(primitive: str, params: Mapping[str, Any]) -> bool:
    """Returns whether an operation indexes, itself or in what it runs."""
    if primitive in INDEXING:
        return True
    return any(
        indexes(eqn.primitive.name, eqn.params)
        for callee, _ in _bodies(primitive, params, ())
        for eqn in getattr(callee, "jaxpr", callee).eqns
    )


# --- what indexes what -----------------------------------------------------------------------

Index = tuple[int, Lanes, bool]  # which operand, where it may lie, whether it is a real index


def _gather(op: Operation, operands: Sequence[Lanes]) -> Iterator[Index]:
    shape, sizes = op.in_shapes[0], op.params["slice_sizes"]
    dims = op.params["dimension_numbers"].start_index_map
    yield 1, tuple(Span(0, shape[dim] - sizes[dim]) for dim in dims) or ANYTHING, True


def _scatter(op: Operation, operands: Sequence[Lanes]) -> Iterator[Index]:
    shape, _, updates = op.in_shapes
    numbers = op.params["dimension_numbers"]
    points = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [dim for dim in range(len(shape)) if dim not in points]
    sizes = dict(zip(windows, (updates[dim] for dim in numbers.update_window_dims), strict=True))
    dims = numbers.scatter_dims_to_operand_dims
    yield 1, tuple(Span(0, shape[dim] - sizes.get(dim, 1)) for dim in dims) or ANYTHING, True


def _dynamic_slice(op: Operation, operands: Sequence[Lanes]) -> Iterator[Index]:
    for dim, (size, taken) in enumerate(
        zip(op.in_shapes[0], op.params["slice_sizes"], strict=True)
    ):
        yield 1 + dim, (Span(0, size - taken),), True


def _dynamic_update_slice(op: Operation, operands: Sequence[Lanes]) -> Iterator[Index]:
    for dim, (size, put) in enumerate(zip(*op.in_shapes[:2], strict=True)):
        yield 2 + dim, (Span(0, size - put),), True


def _one_hot(op: Operation, operands: Sequence[Lanes]) -> Iterator[Index]:
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
INDEXING: Mapping[str, Callable[[Operation, Sequence[Lanes]], Iterator[Index]]] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "eq": _one_hot,
    **{f"scatter{kind}": _scatter for kind in SCATTERS},
}
