"""A plan: how every tensor of a training step lies on a mesh.

It holds what people read and files keep (arguments and results by path, choices by segment and
block) and, once it knows its step, the layouts to rebuild that step sharded (`Bound`). Templates
and the planner return plans that know their step; a plan from a file learns it from `bind`, which
`jit`, `place` and `verify` do by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax.sharding import PartitionSpec

from cfp.errors import CfpError
from cfp.export import Rules, find_rules, make_snippet, slash_path
from cfp.layouts import AnyMesh, auto_mesh, real_mesh, to_spec
from cfp.links.collectives import MeshCollective
from cfp.memory_size import bytes_text
from cfp.plan.bound import Bound, jit_bound, shardings
from cfp.plan.by_hand import by_hand
from cfp.plan.choice import SegmentChoice
from cfp.plan.collectives import Collective, find_collectives, name_collectives
from cfp.plan.environment import Environment
from cfp.plan.evidence import Evidence, FrontierPoint
from cfp.plan.place import place_arrays
from cfp.plan.target import Target
from cfp.plan.tensor import PlannedTensor
from cfp.trace.find_calling import placing_of
from cfp.trace.runtime import without_mesh

if TYPE_CHECKING:
    from cfp.plan.planned_step import PlannedStep


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step is expected to cost on one device, from measurements of its segments. Where that
    of a segment was not measured, `compute_s` and `communication_s` are None."""

    time_s: float
    compute_s: float | None
    communication_s: float | None
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """See the module's docstring. `segments` is empty where `values` says it all."""

    name: str
    mesh: AnyMesh
    argument_names: tuple[str, ...]
    arguments: tuple[PlannedTensor, ...]
    results: tuple[PlannedTensor, ...]
    segments: tuple[SegmentChoice, ...]
    values: tuple[PlannedValue, ...]
    sequence: bool
    environment: Environment
    notes: tuple[str, ...] = ()
    predicted: Predicted | None = None
    evidence: Evidence | None = None
    target: Target | None = None
    saved_collectives: tuple[Collective, ...] | None = None
    bound: Bound | None = None

    def __repr__(self) -> str:
        """Returns one line: a plan holds its whole step, which is megabytes of text."""
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        cost = self.predicted
        predicted = (
            ""
            if cost is None
            else f", predicted {cost.time_s * 1e3:.3g} ms a step and "
            f"{bytes_text(cost.memory_bytes)} on each device"
        )
        return f"<Plan {self.name!r} for a mesh of {axes}{predicted}>"

    def show(self) -> str:
        """Returns what the plan splits where, and why, as text: the short form of `cfp explain`."""
        from cfp.report import plan_text  # reads plans and so imports this module

        return plan_text(self)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes the page about a plan that was planned, with the numbers that justify it."""
        from cfp.report import write_page  # reads plans and so imports this module

        write_page(self, path)

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.axis_sizes)

    @property
    def frontier(self) -> tuple[FrontierPoint, ...]:
        """Returns the fastest plans for their memory, least memory first: what more or less memory
        would buy. It is empty for plans that the planner did not make."""
        return () if self.evidence is None else self.evidence.frontier

    @property
    def in_shardings(self) -> Any:
        """Returns one `NamedSharding` per array of the arguments, for `jax.jit(step,
        in_shardings=...)`.

        Their mesh leaves every axis to the compiler, which plain `jax.jit` needs to split a step
        that says nothing about shardings itself. On a mesh of Explicit axes, call it with
        `jax.device_put(args, plan.in_shardings)`: what `place` returns has Explicit axes too.
        """
        bound = self.known("in_shardings")
        return shardings(auto_mesh(self.mesh), bound.layouts.inputs, bound.analysis.graph.in_tree)

    @property
    def out_shardings(self) -> Any:
        """Returns one `NamedSharding` per array of the result, as `in_shardings`."""
        bound = self.known("out_shardings")
        return shardings(auto_mesh(self.mesh), bound.layouts.outputs, bound.analysis.graph.out_tree)

    def bind(self, step: Callable[..., Any], *args: Any) -> Plan:
        """Returns the plan of this step. A step that the plan is not for is refused with the
        reason."""
        from cfp.plan.bind import bind_plan  # `build` makes plans and so imports this module

        return bind_plan(self, step, args)

    def jit(
        self, step: Callable[..., Any], *, donate_argnums: Sequence[int] | None = None
    ) -> PlannedStep:
        """Returns the step jitted, with the plan's shardings and constraints.

        Arguments that the step donates (being jitted with `donate_argnums`) are donated, unless
        `donate_argnums` here says otherwise.
        """
        from cfp.plan.planned_step import PlannedStep  # holds a plan and so imports this module

        real_mesh(self.mesh, "jit")
        return PlannedStep(self, step, donate_argnums)

    def place(self, *args: Any) -> tuple[Any, ...]:
        """Returns the arguments on the mesh as the plan wants them, for
        `step_p(*plan.place(*args))`.

        What comes back shares no memory with what was given, so that a step may use it up. Objects
        of NNX get their arrays placed where they are and stay the same objects. A
        `ShapeDtypeStruct` gets its sharding and stays one. One argument alone, a new batch, is
        `plan.place_argument("batch", batch)`.
        """
        if len(args) != len(self.argument_names):
            raise CfpError(
                f"`place` got {len(args)} arguments; the step takes {len(self.argument_names)}: "
                f"{', '.join(self.argument_names)}."
            )
        return self._place(self.argument_names, args)

    def place_argument(self, name: str, arg: Any) -> Any:
        """Returns one argument on the mesh, by its name in the step's signature."""
        if name not in self.argument_names:
            raise self._no_argument(name)
        return self._place([name], [arg])[0]

    def _place(self, names: Sequence[str], args: Sequence[Any]) -> tuple[Any, ...]:
        real_mesh(self.mesh, "place")
        calling = placing_of(names, args, {tensor.path for tensor in self.arguments})
        placed = place_arrays(self.mesh, self.arguments, names, calling.arrays(args))
        return calling.with_arrays(args, placed)

    def collectives(self) -> tuple[Collective, ...]:
        """Returns every collective of the compiled step, with what it moves and where it comes
        from.

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
        """Returns the step as XLA compiled it for this plan's mesh; nothing runs."""
        bound = self.known("compiled")
        if "step" not in bound.compiled:
            jitted = jit_bound(bound, real_mesh(self.mesh, "compiled"), None)
            with without_mesh():
                bound.compiled["step"] = jitted.lower(*bound.args).compile()
        return bound.compiled["step"]

    def memory_bytes(self) -> int:
        """Returns what the compiled step needs on one device: arguments, results and
        temporaries."""
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

    def to_rules(self, argument: str | None = None) -> Rules:
        """Returns the shardings of the arguments as rules by path: (regular expression,
        PartitionSpec), of which the first that matches counts.

        Paths have slashes, as `jax.tree_util.keystr(path, simple=True, separator="/")` writes them,
        after the argument's name: `params/layers/0/up`. With `argument`, the rules are of the paths
        within that one. They were applied to every tensor.

            for pattern, spec in plan.to_rules("params"):
                print(pattern, spec)
        """
        specs = {slash_path(path): spec for path, spec in self._specs(self.arguments).items()}
        if argument is not None:
            if argument not in self.argument_names:
                raise self._no_argument(argument)
            inside = f"{argument}/"
            specs = {
                path.removeprefix(inside): spec
                for path, spec in specs.items()
                if path == argument or path.startswith(inside)
            }
        return find_rules(specs)

    def snippet(self) -> str:
        """Returns a Python module of plain `NamedSharding`s, which needs JAX alone. What the plan
        does inside the step (computing again, split streams) is a comment in it.

        pathlib.Path("shardings.py").write_text(plan.snippet())
        """
        return make_snippet(
            f"Shardings of the plan {self.name!r}.",
            self.mesh.shape,
            self.argument_names,
            self._specs(self.arguments),
            self._specs(self.results),
            by_hand(self.segments, self.mesh.axis_names),
        )

    def _specs(self, tensors: Sequence[PlannedTensor]) -> dict[str, PartitionSpec]:
        return {one.path: to_spec(one.layout, self.mesh.axis_names) for one in tensors}

    def _no_argument(self, name: str) -> CfpError:
        return CfpError(
            f"The step has no argument `{name}`: it takes {', '.join(self.argument_names)}."
        )

    def known(self, what: str) -> Bound:
        """Returns the plan with its step, which `what` needs."""
        if self.bound is None:
            raise CfpError(
                f"`{what}` needs the step, which a plan file does not hold: call "
                "plan = plan.bind(step, *args) first."
            )
        return self.bound


def known_collectives(plan: Plan) -> tuple[Collective, ...] | None:
    """Returns the collectives of a plan where they are known by now; compiles nothing."""
    if plan.bound is None:
        return plan.saved_collectives
    found: tuple[Collective, ...] | None = plan.bound.compiled.get("collectives")
    return found


def learn_collectives(plan: Plan, found: Iterable[MeshCollective]) -> None:
    """Hands a plan the collectives of its step from whoever compiled it, so that it need not be
    compiled again."""
    bound = plan.known("learn_collectives")
    named = name_collectives(found, bound.analysis, plan.mesh)
    bound.compiled.setdefault("collectives", named)
