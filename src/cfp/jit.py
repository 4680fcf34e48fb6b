"""`cfp.jit`: `jax.jit` with the plan found on the first call.

    step = cfp.jit(step, mesh=mesh)

A call is arranged first: keyword arguments go to their positions, and static arguments become part
of the program. What remains are the arguments that a plan is about. The first call with arguments
of some shapes plans the step, or finds the plan that an earlier run kept (`cfp.planning.kept`);
later calls with such arguments run it. Other shapes and other static values are other programs, as
for `jax.jit`, and are planned anew.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Unpack

from jax.sharding import AbstractMesh, Mesh

from cfp.errors import CfpError
from cfp.layouts import auto_mesh
from cfp.plan import Plan, PlannedStep, ReadyCall, load
from cfp.planner import make_plan
from cfp.planning.arrange import Arrangement, Call, Names, Numbers
from cfp.planning.kept import KeptPlans
from cfp.planning.options import Given, Options
from cfp.profile import Progress


def jit(
    step: Callable[..., Any] | None = None,
    *,
    mesh: Mesh,
    plan: Plan | str | os.PathLike[str] | None = None,
    donate_argnums: Numbers = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    progress: Progress | bool | None = True,
    **options: Unpack[Given],
) -> Any:
    """Returns the step jitted, split over the mesh by the fastest plan that fits.

    The first call finds the plan, by measuring, and tells its progress on stderr; `progress=False`
    is silent. The plan is kept beside the measurements, under the content of the step, the shapes
    of its arguments, the mesh, the options and the environment: later runs of the same script find
    it there and measure nothing. Arguments that are not where the plan wants them are moved there.

    plan              a plan, or a file that `cfp plan` wrote, to use instead of finding one
    donate_argnums    arguments whose memory the step may use up, as of `jax.jit`
    static_argnums,   arguments that are part of the program, as of `jax.jit`
    static_argnames
    options           those of `cfp.plan`: `budget="5m"`, `memory_limit="12GiB"`, `pins`, ...

    `step` may be jitted already, by `jax.jit`, `nnx.jit` or `eqx.filter_jit`. The result has the
    plan of the last call as `.plan`. On a mesh of several processes every process calls it alike.

        step = cfp.jit(step, mesh=mesh, budget="2m")
        params, loss = step(params, batch)
        print(step.plan.show())
    """
    if step is None:
        return lambda step: jit(
            step,
            mesh=mesh,
            plan=plan,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            progress=progress,
            **options,
        )
    if not callable(step):
        raise CfpError(f"`step` is of type {type(step).__name__}, not a function: pass the step.")
    if isinstance(auto_mesh(mesh), AbstractMesh):  # which refuses what is no mesh
        raise CfpError(
            "`cfp.jit` runs the step, and `mesh` has no devices: give a jax.sharding.Mesh. "
            "`cfp.plan` plans for a mesh that is not there."
        )
    if plan is not None and options:
        raise CfpError(
            f"`{next(iter(options))}` says how to find a plan, and `plan` gives one: leave one out."
        )
    arrangement = Arrangement.of(step, donate_argnums, static_argnums, static_argnames)
    return JittedStep(arrangement, mesh, plan, Options(**options), progress)


class JittedStep:
    """A step that is planned when it is first called; `cfp.jit` makes it."""

    def __init__(
        self,
        arrangement: Arrangement,
        mesh: Mesh,
        plan: Plan | str | os.PathLike[str] | None,
        options: Options,
        progress: Progress | bool | None,
    ) -> None:
        self.mesh = mesh
        self._arrangement = arrangement
        self._given = plan
        self._options = options
        self._progress = progress
        self._known: dict[tuple[Any, ...], list[PlannedStep]] = {}  # by static arguments
        self._last: PlannedStep | None = None
        functools.update_wrapper(self, arrangement.step)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._arrangement.call(args, kwargs)
        return self._ready(call).run()

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the planned step lowered for these arguments, as `jax.jit(step).lower` does."""
        call = self._arrangement.call(args, kwargs)
        return self._ready(call).lower()

    @property
    def plan(self) -> Plan:
        """Returns the plan of the last call."""
        if self._last is None:
            raise CfpError("There is no plan yet: the first call finds it. Call the step first.")
        return self._last.plan

    def _ready(self, call: Call) -> ReadyCall:
        """Returns the call under the plan for arguments like these, which is found if need be."""
        known = self._known.setdefault(call.program, [])
        for planned in reversed(known):
            ready = planned.known(call.data)
            if ready is not None and ready.fits:
                self._last = planned
                return ready
        program = self._arrangement.program(call)
        self._last = self._plan_of(program, call.data).jit(program)
        known.append(self._last)
        return self._last.ready(call.data)

    def _plan_of(self, program: Callable[..., Any], data: tuple[Any, ...]) -> Plan:
        if self._given is not None:
            return self._given_plan(self._given).bind(program, *data)
        kept = KeptPlans.beside(self._options.cache_dir)
        return make_plan(
            program, data, self.mesh, self._options, progress=self._progress, kept=kept
        )

    def _given_plan(self, given: Plan | str | os.PathLike[str]) -> Plan:
        if not isinstance(given, Plan):
            return load(given, mesh=self.mesh)
        if given.mesh != self.mesh:
            raise CfpError("`plan` is for another mesh than `mesh`: give the plan's own.")
        return given
