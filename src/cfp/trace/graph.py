"""The traced step: a flat list of equations over numbered values.

Grammar, as `Graph.show` prints it:

    value     ::= %index:dtype[shape]
    equation  ::= value... = primitive %index... ; role [loop] [opaque]
    role      ::= forward | backward | update

Calls are inlined. A `scan` that contracts is spliced: one iteration of its body stands in the
list, marked with its `Loop`, between four pseudo-operations that `affine` knows like any other:
`loop_enter` (initial carry -> carry), `loop_slice` (stacked -> one iteration's slice),
`loop_stack` (one iteration's result -> stacked) and `loop_exit` (carry -> final carry). So every
later stage sees a loop body as ordinary equations that happen `length` times.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from cfp.affine import OpMap
from cfp.trace.calling import Calling

Shape = tuple[int, ...]

LOOP_ENTER, LOOP_SLICE, LOOP_STACK, LOOP_EXIT = (
    "loop_enter",
    "loop_slice",
    "loop_stack",
    "loop_exit",
)
LOOP_PRIMITIVES = frozenset({LOOP_ENTER, LOOP_SLICE, LOOP_STACK, LOOP_EXIT})


def is_key(dtype: Any) -> bool:
    """Returns whether a dtype is that of a typed PRNG key."""
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


class Role(enum.Enum):
    """Which pass of the training step an equation belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor. `producer` is an equation's index; None for arguments and constants."""

    index: int
    shape: Shape
    dtype: Any
    producer: int | None

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def show(self) -> str:
        return f"%{self.index}:{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Op:
    """What an equation does, apart from where: equal equations share one Op.

    `map` is None where the element-level dependency is unknown: the operation is opaque.
    `primitive_object` is JAX's primitive, None for the loop pseudo-operations.
    """

    primitive: str
    params: Mapping[str, Any]
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    out_dtypes: tuple[Any, ...]
    map: OpMap | None
    primitive_object: Any


@dataclass(frozen=True, slots=True)
class Equation:
    """One operation at its place.

    `recomputed` marks what `jax.checkpoint` may compute again; `origin` is JAX's equation, with
    the user's source line and the context to bind it in; `calls` are the calls it was inlined
    from, outermost first.
    """

    index: int
    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    role: Role
    loop: int | None
    recomputed: bool
    origin: Any
    calls: tuple[Any, ...]

    @property
    def primitive(self) -> str:
        return self.op.primitive

    @property
    def opaque(self) -> bool:
        return self.op.map is None


@dataclass(frozen=True, slots=True)
class Loop:
    """A spliced `scan`.

    `carries` pairs each `loop_enter` equation with its `loop_exit`. `twin` is the forward loop
    that this loop is the backward pass of.
    """

    index: int
    parent: int | None
    length: int
    reverse: bool
    role: Role
    carries: tuple[tuple[int, int], ...]
    twin: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced step. `inputs` and `outputs` are value indices in the order of the flat pytrees.

    `in_tree` is the structure of the tuple of arguments, `out_tree` that of the result, both of
    arrays; `calling` says how these come from what the user passes and become what the user gets.
    The step asks for `own_constraints` shardings itself; they are left out, since a plan decides.
    """

    equations: tuple[Equation, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_paths: tuple[str, ...]
    output_paths: tuple[str, ...]
    donated: frozenset[int]
    constants: Mapping[int, Any]
    loops: tuple[Loop, ...]
    readers: tuple[tuple[int, ...], ...]
    returned: frozenset[int]  # `outputs` as a set
    in_tree: Any
    out_tree: Any
    calling: Calling
    own_constraints: int
    trace_s: float

    def role(self, role: Role) -> Iterator[Equation]:
        return (equation for equation in self.equations if equation.role is role)

    def loop_path(self, loop: int | None) -> tuple[int, ...]:
        """Returns the loops around an equation, outermost first."""
        path: list[int] = []
        while loop is not None:
            path.append(loop)
            loop = self.loops[loop].parent
        return tuple(reversed(path))

    def times(self, loop: int | None) -> int:
        """Returns how many times an equation of `loop` runs in one step."""
        return math.prod(self.loops[inner].length for inner in self.loop_path(loop))

    def opaque(self) -> tuple[Equation, ...]:
        return tuple(equation for equation in self.equations if equation.opaque)

    def argument(self, value: int) -> str | None:
        """Returns the path of the one argument that a value is made from (cast, sliced,
        reshaped)."""
        while (producer := self.values[value].producer) is not None:
            made_from = [v for v in self.equations[producer].inputs if v not in self.constants]
            if len(made_from) != 1:
                return None
            (value,) = made_from
        return self.input_paths[self.inputs.index(value)] if value in self.inputs else None

    def describe(self, value: int) -> str:
        """Returns a value as the user knows it: its argument path, or what made it and where."""
        from cfp.trace.source import source_line  # the only place a description needs frames

        if value in self.inputs:
            return self.input_paths[self.inputs.index(value)]
        producer = self.values[value].producer
        if producer is None:
            return f"constant {self.values[value].show()}"
        equation = self.equations[producer]
        return f"{self.values[value].show()} = {equation.primitive} at {source_line(equation)}"

    def show(self) -> str:
        lines = [
            f"arg {path} = {self.values[value].show()}"
            for path, value in zip(self.input_paths, self.inputs, strict=True)
        ]
        for equation in self.equations:
            results = " ".join(self.values[value].show() for value in equation.outputs)
            operands = " ".join(f"%{value}" for value in equation.inputs)
            marks = equation.role.value
            if equation.loop is not None:
                marks += f" loop{equation.loop}"
            if equation.opaque:
                marks += " opaque"
            lines.append(f"{results} = {equation.primitive} {operands} ; {marks}")
        lines += [
            f"out {path} = %{value}"
            for path, value in zip(self.output_paths, self.outputs, strict=True)
        ]
        return "\n".join(lines)
