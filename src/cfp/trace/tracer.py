"""Stage 1: a step and example arguments become a `Graph`.

Roles come from JAX's name stack: the backward pass carries `transpose(...)` outermost; the
update is what lies outside autodiff and depends on a gradient, or serves only what does (step
counters, schedules) or no one (an average of the parameters).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from cfp.errors import CfpError
from cfp.trace.calling import Calling, Returned
from cfp.trace.find_calling import calling_of
from cfp.trace.graph import Equation, Graph, Role, Value
from cfp.trace.inline import Context, Inliner
from cfp.trace.paths import argument_names, leaf_paths
from cfp.trace.source import in_one_line


def trace(step: Callable[..., Any], *args: Any) -> Graph:
    """Traces `step` on arrays or `ShapeDtypeStruct`s without running it."""
    if not callable(step):
        raise CfpError(f"`step` is of type {type(step).__name__}, not a function: pass the step.")
    start = time.perf_counter()
    names = argument_names(step, len(args))
    calling = calling_of(step, names, args)
    arrays = calling.arrays(args)
    paths = leaf_paths(names, arrays)
    closed, result, calling = _make_jaxpr(step, calling, arrays)
    traced_s = time.perf_counter() - start

    inliner = Inliner()
    jaxpr = closed.jaxpr
    if not jaxpr.outvars:
        raise CfpError(
            "The step returns nothing, so there is nothing to compute: return the new state, as "
            "`return params, loss`."
        )
    inputs = [inliner.value(var.aval, None) for var in jaxpr.invars]
    env = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, array in zip(jaxpr.constvars, closed.consts, strict=True):
        env[var] = inliner.constant(array, var.aval)
    outputs = inliner.run(jaxpr, env, Context())
    readers = _readers(inliner.equations, len(inliner.values))
    return Graph(
        equations=_settle_roles(inliner, readers),
        values=tuple(inliner.values),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        input_paths=tuple(paths),
        output_paths=tuple(calling.output_paths(names, result)),
        donated=_donated(jaxpr),
        constants=inliner.constants,
        loops=tuple(inliner.loops),
        readers=readers,
        returned=frozenset(outputs),
        in_tree=jax.tree.structure(arrays),
        out_tree=jax.tree.structure(result),
        calling=calling,
        own_constraints=inliner.own_constraints,
        trace_s=traced_s,
    )


def _make_jaxpr(
    step: Callable[..., Any], calling: Calling, arrays: tuple[Any, ...]
) -> tuple[Any, Any, Calling]:
    """Returns the step's jaxpr, the shapes of its results, and how it is called.

    It depends on shapes and types alone, not on where the arguments lie: JAX would otherwise trace
    other equations for arrays on a mesh of Explicit axes, or under one.
    """
    told: list[Returned] = []
    shapes = jax.tree.map(_shape_of, arrays)
    try:
        with _automatic_axes():
            closed, result = jax.make_jaxpr(calling.pure(step, told.append), return_shape=True)(
                *shapes
            )
    except CfpError:
        raise
    except Exception as error:
        raise CfpError(
            f"The step does not trace: {in_one_line(error)}. Check that jax.jit(step)(*args) works."
        ) from error
    return closed, result, calling.after(told)


def _shape_of(leaf: Any) -> Any:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    shape: Any = jax.ShapeDtypeStruct
    return shape(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _automatic_axes() -> Any:
    """Returns the mesh that `jax.set_mesh` set, if any, with every axis left to the compiler."""
    mesh = jax.sharding.get_abstract_mesh()
    auto: Any = jax.sharding.AxisType.Auto
    return jax.sharding.use_abstract_mesh(
        mesh.update_axis_types(dict.fromkeys(mesh.axis_names, auto))
    )


def _readers(equations: Sequence[Equation], values: int) -> tuple[tuple[int, ...], ...]:
    readers: list[list[int]] = [[] for _ in range(values)]
    for equation in equations:
        for value in dict.fromkeys(equation.inputs):
            readers[value].append(equation.index)
    return tuple(tuple(indices) for indices in readers)


def _settle_roles(inliner: Inliner, readers: Sequence[Sequence[int]]) -> tuple[Equation, ...]:
    """Moves into the update what it alone reads, and what concerns neither loss nor gradient.

    The first are schedules; the second counters and averages that go straight to a result.
    """
    equations = _before_forward(inliner.equations, inliner.values)
    if not any(equation.role is Role.BACKWARD for equation in equations):
        return tuple(equations)
    under_autodiff: set[int] = set()
    for equation in equations:
        inside = equation.index not in inliner.outside_autodiff
        if inside or not under_autodiff.isdisjoint(equation.inputs):
            under_autodiff.update(equation.outputs)
    for index in range(len(equations) - 1, -1, -1):
        equation = equations[index]
        outside = index in inliner.outside_autodiff and equation.loop is None
        if equation.role is not Role.FORWARD or not outside:
            continue
        users = [user for output in equation.outputs for user in readers[output]]
        served = all(equations[user].role is Role.UPDATE for user in users)
        if served and (users or under_autodiff.isdisjoint(equation.outputs)):
            equations[index] = replace(equation, role=Role.UPDATE)
    return tuple(equations)


def _before_forward(equations: Sequence[Equation], values: Sequence[Value]) -> list[Equation]:
    """Returns the equations whose gradient a later forward pass depends on (in a perturbed step):
    they are forward work themselves."""
    settled = list(equations)
    for index in range(len(settled) - 1, -1, -1):
        if settled[index].role is Role.FORWARD:
            for value in settled[index].inputs:
                producer = values[value].producer
                if producer is not None and settled[producer].role is not Role.FORWARD:
                    settled[producer] = replace(settled[producer], role=Role.FORWARD)
    return settled


def _donated(jaxpr: Any) -> frozenset[int]:
    """Returns positions of the flat inputs that a jitted step donates."""
    for eqn in jaxpr.eqns:
        flags = eqn.params.get("donated_invars")
        if flags and any(flags):
            given = {id(var) for var, on in zip(eqn.invars, flags, strict=True) if on}
            return frozenset(i for i, var in enumerate(jaxpr.invars) if id(var) in given)
    return frozenset()
