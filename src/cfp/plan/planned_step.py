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


class PlannedStep:
    """A step under a plan. It is called like the step itself; `lower` is that of `jax.jit`.

    Arguments with other static values (a model made anew, whose optimizer has functions of its
    own) make another program, which is traced when they first come, as `nnx.jit` and
    `eqx.filter_jit` do it. The plan must be for that one, too.
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
        program, arrays = self._program(args)
        arrays = _moved(arrays, program.wanted)
        with without_mesh():
            results = program.jitted(*arrays)
        return program.bound.calling.results(args, results)

    def lower(self, *args: Any) -> Any:
        program, arrays = self._program(args)
        with without_mesh():
            return program.jitted.lower(*arrays)

    def _program(self, args: tuple[Any, ...]) -> tuple[_Program, tuple[Any, ...]]:
        """Returns the program that these arguments make, and the arrays in them."""
        for program in reversed(self._programs):
            try:
                return program, program.bound.calling.arrays(args)
            except AnotherProgram:
                continue
        program = self._bind(args)
        return program, program.bound.calling.arrays(args)

    def _bind(self, args: tuple[Any, ...]) -> _Program:
        self.plan = self.plan.bind(self.step, *args)
        return self._ready(self.plan.known("jit"))

    def _ready(self, bound: Bound) -> _Program:
        mesh = self.plan.mesh
        wanted = tuple(sharding(mesh, layout) for layout in bound.layouts.inputs)
        program = _Program(bound, jit_bound(bound, mesh, self.donate_argnums), wanted)
        self._programs.append(program)
        return program


def _moved(arrays: tuple[Any, ...], wanted: Sequence[Sharding]) -> tuple[Any, ...]:
    """Brings arrays that lie otherwise to where the plan wants them: `jax.jit` refuses to do that
    for arrays that someone has placed."""
    leaves, tree = jax.tree.flatten(arrays)
    if len(leaves) != len(wanted):
        return arrays  # `jit_bound` says what is wrong with them
    wrong = [i for i, leaf in enumerate(leaves) if _lies_elsewhere(leaf, wanted[i])]
    if not wrong:
        return arrays
    for i in wrong:
        leaves[i] = jax.device_put(leaves[i], wanted[i])
    moved: tuple[Any, ...] = jax.tree.unflatten(tree, leaves)
    return moved


def _lies_elsewhere(leaf: Any, where: Sharding) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False  # `jax.jit` places numbers and NumPy's arrays itself
    there = leaf.sharding
    return there != where and leaf.committed and not there.is_equivalent_to(where, leaf.ndim)
