"""A plan: how every tensor of a training step lies on a mesh.

It holds what people read and files keep (arguments and results by path, choices by segment and
block) and, once it knows its step, the layouts to rebuild that step sharded (`Bound`). Templates
and the planner return plans that know their step; a plan from a file learns it from `bind`, which
`jit`, `place` and `verify` do by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from cfp.errors import CfpError
from cfp.layouts import sharding
from cfp.plan.bound import Bound, jit_bound, shardings
from cfp.plan.choice import SegmentChoice
from cfp.plan.collectives import Collective, find_collectives
from cfp.plan.environment import Environment
from cfp.plan.evidence import Evidence, FrontierPoint
from cfp.plan.tensor import PlannedTensor
from cfp.trace.paths import leaf_paths


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step is expected to cost on one device, from measurements of its segments."""

    time_s: float
    compute_s: float
    communication_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """A tensor inside the step that the plan fixes by itself, not through a block's strategy.

    It is the equation's result of that number or, where `operand` says so, an operand as the
    equation reads it.
    """

    equation: int
    primitive: str
    result: int | None
    operand: int | None
    shape: tuple[int, ...]
    layout: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """See the module's docstring. `segments` is empty where `values` says it all. `entries` are
    operands that a segment reads otherwise than another made them."""

    name: str
    mesh: Mesh
    argument_names: tuple[str, ...]
    arguments: tuple[PlannedTensor, ...]
    results: tuple[PlannedTensor, ...]
    segments: tuple[SegmentChoice, ...]
    values: tuple[PlannedValue, ...]
    sequence: bool
    environment: Environment
    entries: tuple[PlannedValue, ...] = ()
    notes: tuple[str, ...] = ()
    predicted: Predicted | None = None
    evidence: Evidence | None = None
    saved_collectives: tuple[Collective, ...] | None = None
    bound: Bound | None = None

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.devices.shape)

    @property
    def frontier(self) -> tuple[FrontierPoint, ...]:
        """What more or less memory would buy: the fastest plans for their memory, least memory
        first. Empty for plans that were not planned."""
        return () if self.evidence is None else self.evidence.frontier

    @property
    def in_shardings(self) -> Any:
        """One `NamedSharding` per leaf of the arguments, for `jax.jit(step, in_shardings=...)`."""
        bound = self.known("in_shardings")
        return shardings(self.mesh, bound.layouts.inputs, bound.analysis.graph.in_tree)

    @property
    def out_shardings(self) -> Any:
        """One `NamedSharding` per leaf of the result."""
        bound = self.known("out_shardings")
        return shardings(self.mesh, bound.layouts.outputs, bound.analysis.graph.out_tree)

    def bind(self, step: Callable[..., Any], *args: Any) -> Plan:
        """The plan of this step. A step that the plan is not for is refused with the reason."""
        from cfp.plan.build import bind_plan  # `build` makes plans and so imports this module

        return bind_plan(self, step, args)

    def jit(
        self, step: Callable[..., Any], *, donate_argnums: Sequence[int] | None = None
    ) -> PlannedStep:
        """The step jitted, with the plan's shardings and constraints.

        Arguments that the step donates (being jitted with `donate_argnums`) are donated, unless
        `donate_argnums` here says otherwise.
        """
        return PlannedStep(self, step, donate_argnums)

    def place(self, *args: Any) -> tuple[Any, ...]:
        """The arguments on the mesh as the plan wants them, for `step_p(*plan.place(*args))`.

        A `ShapeDtypeStruct` gets its sharding and stays one. One argument alone, a new batch, is
        `plan.place_argument("batch", batch)`.
        """
        if len(args) != len(self.argument_names):
            raise CfpError(
                f"`place` got {len(args)} arguments; the step takes {len(self.argument_names)}: "
                f"{', '.join(self.argument_names)}."
            )
        return tuple(
            self.place_argument(name, arg)
            for name, arg in zip(self.argument_names, args, strict=True)
        )

    def place_argument(self, name: str, arg: Any) -> Any:
        """One argument on the mesh, by its name in the step's signature."""
        planned = {tensor.path: tensor for tensor in self.arguments}
        paths = leaf_paths([name], [arg])
        leaves, tree = jax.tree.flatten(arg)
        placed: list[Any] = []
        for path, leaf in zip(paths, leaves, strict=True):
            tensor = planned.get(path)
            if tensor is None:
                raise CfpError(f"The plan has no argument `{path}`: it is for another step.")
            if tuple(jax.numpy.shape(leaf)) != tensor.shape:
                raise CfpError(
                    f"`{path}` has shape {list(jax.numpy.shape(leaf))}; the plan is for "
                    f"{list(tensor.shape)}. Plan the step again for these arguments."
                )
            where = sharding(self.mesh, tensor.layout)
            if isinstance(leaf, jax.ShapeDtypeStruct):
                shape: Any = jax.ShapeDtypeStruct
                placed.append(shape(leaf.shape, leaf.dtype, sharding=where))
            else:
                placed.append(jax.device_put(leaf, where))
        return jax.tree.unflatten(tree, placed)

    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of the compiled step, with what it moves and where it comes from.

        Compiles the step, once. A plan from a file that has not met its step yet tells what was
        found when it was saved.
        """
        if self.bound is None and self.saved_collectives is not None:
            return self.saved_collectives
        bound = self.known("collectives")
        if "collectives" not in bound.compiled:
            text = self.compiled().as_text()
            bound.compiled["collectives"] = find_collectives(text, bound.analysis, self.mesh)
        found: tuple[Collective, ...] = bound.compiled["collectives"]
        return found

    def compiled(self) -> Any:
        """The step as XLA compiled it for this plan's mesh; nothing runs."""
        bound = self.known("compiled")
        if "step" not in bound.compiled:
            jitted = jit_bound(bound, self.mesh, None)
            bound.compiled["step"] = jitted.lower(*bound.args).compile()
        return bound.compiled["step"]

    def memory_bytes(self) -> int:
        """What the compiled step needs on one device: arguments, results and temporaries."""
        stats = self.compiled().memory_analysis()
        return int(
            stats.argument_size_in_bytes
            + stats.output_size_in_bytes
            + stats.temp_size_in_bytes
            - stats.alias_size_in_bytes
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON; `cfp.load` reads it."""
        from cfp.plan.file import save_plan  # reads and writes plans and so imports this module

        save_plan(self, path)

    def known(self, what: str) -> Bound:
        """The plan with its step, which `what` needs."""
        if self.bound is None:
            raise CfpError(
                f"`{what}` needs the step, which a plan file does not hold: call "
                "plan = plan.bind(step, *args) first."
            )
        return self.bound


class PlannedStep:
    """A step under a plan. Calls like the step itself; `lower` as of `jax.jit`."""

    def __init__(
        self, plan: Plan, step: Callable[..., Any], donate_argnums: Sequence[int] | None
    ) -> None:
        self.plan = plan
        self.step = step
        self.donate_argnums = donate_argnums
        self._jitted: Any = None
        if plan.bound is not None:
            self._jit(plan.bound.args)

    def __call__(self, *args: Any) -> Any:
        return (self._jitted or self._jit(args))(*args)

    def lower(self, *args: Any) -> Any:
        return (self._jitted or self._jit(args)).lower(*args)

    def _jit(self, args: tuple[Any, ...]) -> Any:
        self.plan = self.plan.bind(self.step, *args)
        assert self.plan.bound is not None
        self._jitted = jit_bound(self.plan.bound, self.plan.mesh, self.donate_argnums)
        return self._jitted
