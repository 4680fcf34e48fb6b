"""A step under a plan, called as the step itself is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Sharding

from cfp.layouts import sharding
from cfp.plan.bound import Bound, jit_bound
from cfp.plan.plan import Plan
from cfp.trace.calling import PLAIN, AnotherProgram
from cfp.trace.runtime import without_mesh


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """The step under the plan, for one set of static values among its arguments."""

    bound: Bound
    jitted: Any
    wanted: tuple[Sharding, ...]
    types: tuple[tuple[tuple[int, ...], Any], ...]  # shape and dtype of every argument

    @property
    def tree(self) -> Any:
        """Returns the structure of the arguments as arrays."""
        return self.bound.analysis.graph.in_tree

    def leaves(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Returns the arrays of the arguments; None where they make another program."""
        try:
            leaves, tree = jax.tree.flatten(self.bound.calling.arrays(args))
        except AnotherProgram:
            return None
        return leaves if tree == self.tree else None

    def is_for(self, leaves: Sequence[Any]) -> bool:
        """Returns whether arrays have the shapes and dtypes that were planned."""
        return all(
            (there.shape, there.dtype) == planned
            for there, planned in zip(map(_type_of, leaves), self.types, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReadyCall:
    """A call whose arguments were taken apart: the program that they make, and their arrays."""

    program: _Program
    args: tuple[Any, ...]
    leaves: list[Any]

    @property
    def fits(self) -> bool:
        """Returns whether the plan was made for arguments of these shapes and dtypes."""
        return self.program.is_for(self.leaves)

    def run(self) -> Any:
        program = self.program
        arrays = jax.tree.unflatten(program.tree, _moved(self.leaves, program.wanted))
        with without_mesh():
            results = program.jitted(*arrays)
        return program.bound.calling.results(self.args, results)

    def lower(self) -> Any:
        with without_mesh():
            return self.program.jitted.lower(*jax.tree.unflatten(self.program.tree, self.leaves))


class PlannedStep:
    """A step under a plan. It is called like the step itself; `lower` is that of `jax.jit`.

    Arguments with other static values (a `TrainState` or a model made anew, whose optimizer has
    functions of its own) make another program, which is traced when they first come, as `jax.jit`
    does it. The plan must be for that one, too.
    """

    def __init__(
        self, plan: Plan, step: Callable[..., Any], donate_argnums: Sequence[int] | None
    ) -> None:
        self.plan = plan
        self.step = step
        self.donate_argnums = donate_argnums
        self._programs: list[_Program] = []
        if plan.bound is not None and plan.bound.step is step:
            self._ready(plan.bound)
        elif plan.bound is not None and plan.bound.calling is PLAIN:
            self._bind(plan.bound.args)  # a step that the plan is not for is refused now

    def __call__(self, *args: Any) -> Any:
        return self.ready(args).run()

    def lower(self, *args: Any) -> Any:
        return self.ready(args).lower()

    def known(self, args: tuple[Any, ...]) -> ReadyCall | None:
        """Returns the call if its arguments make a program that came before."""
        for program in reversed(self._programs):
            leaves = program.leaves(args)
            if leaves is not None:
                return ReadyCall(program, args, leaves)
        return None

    def ready(self, args: tuple[Any, ...]) -> ReadyCall:
        """Returns the call; the step is traced if its arguments make a new program."""
        found = self.known(args)
        if found is None:
            program = self._bind(args)
            arrays = program.bound.calling.arrays(args)
            found = ReadyCall(program, args, jax.tree.leaves(arrays))
        return found

    def _bind(self, args: tuple[Any, ...]) -> _Program:
        self.plan = self.plan.bind(self.step, *args)
        return self._ready(self.plan.known("jit"))

    def _ready(self, bound: Bound) -> _Program:
        mesh = self.plan.mesh
        wanted = tuple(sharding(mesh, layout) for layout in bound.layouts.inputs)
        types = tuple((one.shape, one.dtype) for one in jax.tree.leaves(bound.args))
        program = _Program(bound, jit_bound(bound, mesh, self.donate_argnums), wanted, types)
        self._programs.append(program)
        return program


def _moved(leaves: list[Any], wanted: Sequence[Sharding]) -> list[Any]:
    """Brings arrays that lie otherwise to where the plan wants them: `jax.jit` refuses to do that
    for arrays that someone has placed."""
    return [
        jax.device_put(leaf, where) if _lies_elsewhere(leaf, where) else leaf
        for leaf, where in zip(leaves, wanted, strict=True)
    ]


def _lies_elsewhere(leaf: Any, where: Sharding) -> bool:
    """Returns whether `jax.jit` would refuse an array. It places numbers, NumPy's arrays and those
    that nobody has placed itself, yet only where one process has all devices."""
    if isinstance(leaf, jax.core.Tracer):
        return False
    if not isinstance(leaf, jax.Array):
        return not where.is_fully_addressable
    there = leaf.sharding
    if there == where:  # the usual case, and the quickest to see
        return False
    bound = leaf.committed or not where.is_fully_addressable
    return bound and not there.is_equivalent_to(where, leaf.ndim)


def _type_of(leaf: Any) -> Any:
    """Returns what has the shape and dtype of a leaf as JAX takes it: float64 may be float32."""
    return leaf if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) else jax.typeof(leaf)
