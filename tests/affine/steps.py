"""Random small programs: steps whose meaning is numpy's, so that thousands of cases are cheap.

A step has the primitive and params that a jaxpr would have, and does the same in numpy on rows
(a leading dim), on which the brute force poisons one element each. `test_paths` checks some of
the programs against the real lax operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from jax import lax

from cfp.affine import OpMap, op_map

from .families import Draw, integers, one, order, refactored

Shape = tuple[int, ...]
LIMIT = 72  # elements in a tensor


@dataclass
class Step:
    """Node `number` of a program: a primitive on earlier nodes (and constants)."""

    primitive: str
    params: dict[str, Any]
    reads: tuple[int, ...]  # nodes
    constants: tuple[Shape, ...]  # further operands, after those read
    run: Callable[..., np.ndarray]  # on rows
    lax: Callable[..., Any]  # the same, without rows
    swapped: bool = False  # the constants are the first operands (run and lax take them last)
    shape: Shape = ()
    op: OpMap | None = None

    def ins(self, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """The operands' shapes, given those of all nodes."""
        mine = tuple(shapes[i] for i in self.reads)
        return (*self.constants, *mine) if self.swapped else (*mine, *self.constants)

    def operand(self, place: int) -> int:
        """Which operand the read at `place` is."""
        return place + len(self.constants) * self.swapped


@dataclass(repr=False)
class Program:
    """Node 0 is the input; node i is what step i - 1 gives."""

    shape: Shape
    steps: list[Step]

    @property
    def shapes(self) -> list[Shape]:
        return [self.shape, *[step.shape for step in self.steps]]

    def __repr__(self) -> str:  # what hypothesis prints of a counterexample
        lines = [f"0: {self.shape}"]
        for i, s in enumerate(self.steps):
            lines.append(f"{i + 1}: {s.shape} = {s.primitive} {s.reads} {s.params} {s.constants}")
        return "\n".join(lines)

    def numpy(self, rows: np.ndarray) -> list[np.ndarray]:
        nodes = [rows]
        for step in self.steps:
            consts = [np.broadcast_to(constant(s), (len(rows), *s)) for s in step.constants]
            nodes.append(step.run(*[nodes[i] for i in step.reads], *consts))
        return nodes

    def jax(self, x: Any) -> list[Any]:
        nodes = [x]
        for step in self.steps:
            nodes.append(step.lax(*[nodes[i] for i in step.reads], *map(constant, step.constants)))
        return nodes[1:]


def constant(shape: Shape) -> np.ndarray:
    return np.arange(1, prod(shape) + 1, dtype="float32").reshape(shape)


def finish(step: Step, shapes: Sequence[Shape]) -> Step:
    """Fill in the shape (as numpy gives it) and the map."""
    ins = step.ins(shapes)
    given = [*[shapes[i] for i in step.reads], *step.constants]
    step.shape = step.run(*[np.ones((1, *s), "float32") for s in given]).shape[1:]
    step.op = op_map(step.primitive, step.params, ins, (step.shape,))
    assert step.op is not None
    step.op.check(ins, (step.shape,))
    return step


def reshape(draw: Draw, at: int, shape: Shape) -> Step:
    new = refactored(draw, prod(shape))
    params = {"new_sizes": new, "dimensions": None}
    return Step("reshape", params, (at,), (), lambda x: x.reshape(len(x), *new),
                lambda x: lax.reshape(x, new))  # fmt: skip


def transpose(draw: Draw, at: int, shape: Shape) -> Step:
    axes = order(draw, len(shape))
    return Step("transpose", {"permutation": axes}, (at,), (),
                lambda x: x.transpose(0, *[d + 1 for d in axes]),
                lambda x: lax.transpose(x, axes))  # fmt: skip


def broadcast(draw: Draw, at: int, shape: Shape) -> Step | None:
    where, size = draw(integers(0, len(shape))), one(draw, 2, 3)
    new = (*shape[:where], size, *shape[where:])
    kept = tuple(d for d in range(len(new)) if d != where)
    if prod(new) > LIMIT:
        return None
    return Step("broadcast_in_dim", {"shape": new, "broadcast_dimensions": kept}, (at,), (),
                lambda x: np.broadcast_to(np.expand_dims(x, where + 1), (len(x), *new)),
                lambda x: lax.broadcast_in_dim(x, new, kept))  # fmt: skip


def multiply(draw: Draw, at: int, shape: Shape) -> Step:
    other = one(draw, shape, ())

    def run(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y.reshape(len(x), *([1] * len(shape) if not other else shape))

    return Step("mul", {}, (at,), (other,), run, lax.mul)


def reduce_sum(draw: Draw, at: int, shape: Shape) -> Step | None:
    if not shape:
        return None
    axis = draw(integers(0, len(shape) - 1))
    return Step("reduce_sum", {"axes": (axis,)}, (at,), (), lambda x: x.sum(axis + 1),
                lambda x: lax.reduce_sum(x, (axis,)))  # fmt: skip


def dot(draw: Draw, at: int, shape: Shape) -> Step | None:
    """A product with a constant: some dims batch, some contracted, and new columns."""
    kinds = [one(draw, "batch", "sum", "row", "row") for _ in shape]
    columns = one(draw, (), (2,), (3,), (2, 2))
    mine = "abcdefg"[: len(shape)]
    batch, summed, rows = (
        "".join(c for c, kind in zip(mine, kinds, strict=True) if kind == k)
        for k in ("batch", "sum", "row")
    )
    letters = batch + summed + "xyz"[: len(columns)]
    other = "".join(letters[i] for i in order(draw, len(letters)))
    size = dict(zip(mine + "xyz", (*shape, *columns, 1, 1, 1), strict=False))
    size |= dict(zip("xyz", columns, strict=False))
    first = draw(integers(0, 1))  # whether the constant is the second operand
    left, right = (mine, other) if first else (other, mine)
    free = "xyz"[: len(columns)]
    free = "".join(c for c in other if c in free)
    result = batch + (rows + free if first else free + rows)
    if prod(size[c] for c in result) > LIMIT:
        return None
    numbers = (
        (tuple(left.index(c) for c in summed), tuple(right.index(c) for c in summed)),
        (tuple(left.index(c) for c in batch), tuple(right.index(c) for c in batch)),
    )
    constant_shape = tuple(size[c] for c in other)

    def run(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.einsum(f"R{mine},R{other}->R{result}", x, y)

    def real(x: Any, y: Any) -> Any:
        return lax.dot_general(*((x, y) if first else (y, x)), numbers)

    return Step("dot_general", {"dimension_numbers": numbers}, (at,), (constant_shape,), run, real,
                swapped=not first)  # fmt: skip


def slice_(draw: Draw, at: int, shape: Shape) -> Step | None:
    if not shape:
        return None
    axis = draw(integers(0, len(shape) - 1))
    n = shape[axis]
    start = draw(integers(0, n - 1))
    stop, stride = draw(integers(start + 1, n)), one(draw, 1, 1, 2, 3)
    if draw(integers(0, 1)) and n % 2 == 0:  # a half, or every second element
        start, stop, stride = one(draw, (0, n // 2, 1), (n // 2, n, 1), (0, n, 2), (1, n, 2))
    starts = [start if d == axis else 0 for d in range(len(shape))]
    stops = [stop if d == axis else m for d, m in enumerate(shape)]
    strides = [stride if d == axis else 1 for d in range(len(shape))]
    params = {"start_indices": starts, "limit_indices": stops, "strides": strides}
    where = tuple(slice(*s) for s in zip(starts, stops, strides, strict=True))
    return Step("slice", params, (at,), (), lambda x: x[:, *where],
                lambda x: lax.slice(x, starts, stops, strides))  # fmt: skip


def pad(draw: Draw, at: int, shape: Shape) -> Step | None:
    config = [one(draw, (0, 0, 0), (n, 0, 0), (0, n, 0), (0, 1, 1), (1, 2, 0)) for n in shape]
    new = [n + (n - 1) * k + low + high for n, (low, high, k) in zip(shape, config, strict=True)]
    if prod(new) > LIMIT:
        return None
    where = tuple(
        slice(low, low + (n - 1) * (k + 1) + 1, k + 1)
        for n, (low, _, k) in zip(shape, config, strict=True)
    )

    def run(x: np.ndarray, value: np.ndarray) -> np.ndarray:
        out = np.ones((len(x), *new), "float32") * value.reshape(len(x), *[1] * len(new))
        out[:, *where] = x
        return out

    return Step("pad", {"padding_config": config}, (at,), ((),), run,
                lambda x, v: lax.pad(x, v, config))  # fmt: skip


def concatenate(draw: Draw, at: int, shape: Shape) -> Step | None:
    if not shape:
        return None
    axis = draw(integers(0, len(shape) - 1))
    other = (*shape[:axis], one(draw, shape[axis], 1, 2), *shape[axis + 1 :])
    if prod(shape) + prod(other) > LIMIT:
        return None
    return Step("concatenate", {"dimension": axis}, (at,), (other,),
                lambda *xs: np.concatenate(xs, axis + 1),
                lambda *xs: lax.concatenate(xs, axis))  # fmt: skip


def rev(draw: Draw, at: int, shape: Shape) -> Step | None:
    if not shape:
        return None
    axis = draw(integers(0, len(shape) - 1))
    return Step("rev", {"dimensions": (axis,)}, (at,), (), lambda x: np.flip(x, axis + 1),
                lambda x: lax.rev(x, (axis,)))  # fmt: skip


def cumsum(draw: Draw, at: int, shape: Shape) -> Step | None:
    if not shape:
        return None
    axis = draw(integers(0, len(shape) - 1))
    return Step("cumsum", {"axis": axis}, (at,), (), lambda x: x.cumsum(axis + 1),
                lambda x: lax.cumsum(x, axis))  # fmt: skip


PLAIN = (reshape, reshape, transpose, broadcast, multiply, reduce_sum, dot)
ALL = (*PLAIN, reshape, transpose, slice_, slice_, pad, concatenate, rev, cumsum)


@st.composite
def chains(draw: Draw, kinds: Sequence[Any] = ALL, length: int = 5) -> Program:
    """Each step reads the one before."""
    program = Program(starts(draw), [])
    for _ in range(draw(integers(1, length))):
        at = len(program.steps)
        step = one(draw, *kinds)(draw, at, program.shapes[at])
        if step is not None:
            program.steps.append(finish(step, program.shapes))
    return program


@st.composite
def graphs(draw: Draw, size: int = 7) -> Program:
    """Steps read any node, and nodes of one shape may be added: a DAG with many paths."""
    program = Program(starts(draw), [])
    for _ in range(draw(integers(2, size))):
        shapes = program.shapes
        at = draw(integers(max(0, len(shapes) - 3), len(shapes) - 1))
        pairs = [(i, j) for j in range(len(shapes)) for i in range(j) if shapes[i] == shapes[j]]
        if pairs and draw(integers(0, 1)):
            pair = one(draw, *pairs)
            step: Step | None = Step("add", {}, pair, (), lambda x, y: x + y, lax.add)
        else:
            step = one(draw, *ALL)(draw, at, shapes[at])
        if step is not None:
            program.steps.append(finish(step, shapes))
    return program


def starts(draw: Draw) -> Shape:
    shape: list[int] = []
    for _ in range(draw(integers(1, 3))):
        shape.append(one(draw, *[n for n in (1, 2, 3, 4, 4, 6, 8, 12) if n * prod(shape) <= LIMIT]))
    return tuple(shape)
