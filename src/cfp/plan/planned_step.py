"""A step under a plan, called as the step itself is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from cfp.layouts import sharding
from cfp.plan.bound import Bound, jit_bound
from cfp.plan.plan import Plan
from cfp.trace.calling import PLAIN
from cfp.trace.runtime import without_mesh


class PlannedStep:
    """A step under a plan. It is called like the step itself; `lower` is that of `jax.jit`."""

    def __init__(
        self, plan: Plan, step: Callable[..., Any], donate_argnums: Sequence[int] | None
    ) -> None:
        self.plan = plan
        self.step = step
        self.donate_argnums = donate_argnums
        self._jitted: Any = None
        self._wanted: list[Sharding] = []
        if plan.bound is not None and plan.bound.step is step:
            self._ready()
        elif plan.bound is not None and plan.bound.calling is PLAIN:
            self._bind(plan.bound.args)  # a step that the plan is not for is refused now

    def __call__(self, *args: Any) -> Any:
        jitted = self._jitted or self._bind(args)
        calling = self._bound().calling
        arrays = self._moved(calling.arrays(args))
        with without_mesh():
            results = jitted(*arrays)
        return calling.results(args, results)

    def lower(self, *args: Any) -> Any:
        jitted = self._jitted or self._bind(args)
        arrays = self._bound().calling.arrays(args)
        with without_mesh():
            return jitted.lower(*arrays)

    def _bind(self, args: tuple[Any, ...]) -> Any:
        self.plan = self.plan.bind(self.step, *args)
        return self._ready()

    def _ready(self) -> Any:
        bound, mesh = self._bound(), self.plan.mesh
        self._jitted = jit_bound(bound, mesh, self.donate_argnums)
        self._wanted = [sharding(mesh, layout) for layout in bound.layouts.inputs]
        return self._jitted

    def _bound(self) -> Bound:
        return self.plan.known("jit")

    def _moved(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Brings arrays that lie otherwise to where the plan wants them: `jax.jit` refuses to do
        that for arrays that someone has placed."""
        leaves, tree = jax.tree.flatten(arrays)
        if len(leaves) != len(self._wanted):
            return arrays  # `jit_bound` says what is wrong with them
        wrong = [i for i, leaf in enumerate(leaves) if _lies_elsewhere(leaf, self._wanted[i])]
        if not wrong:
            return arrays
        for i in wrong:
            leaves[i] = jax.device_put(leaves[i], self._wanted[i])
        moved: tuple[Any, ...] = jax.tree.unflatten(tree, leaves)
        return moved


def _lies_elsewhere(leaf: Any, where: Sharding) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False  # `jax.jit` places numbers and NumPy's arrays itself
    there = leaf.sharding
    return there != where and leaf.committed and not there.is_equivalent_to(where, leaf.ndim)
