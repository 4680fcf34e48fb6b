"""From nested jaxprs to flat lists of equations: calls inlined, contracting scans spliced.

A `checkpoint` that recomputes keeps its barrier: its inputs pass through `optimization_barrier`,
just as JAX lowers it, so that no compiler merges the recomputation with the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax._src.source_info_util import Transform
from jax.extend import core as jex

from cfp.affine import op_map
from cfp.trace.graph import (
    LOOP_ENTER,
    LOOP_EXIT,
    LOOP_SLICE,
    LOOP_STACK,
    Equation,
    Loop,
    Op,
    Role,
    Value,
)

# call-like primitive -> the parameter that holds the called jaxpr
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})
# primitives by which a step itself constrains a tensor's sharding; they compute nothing
PLACEMENTS = frozenset({"sharding_constraint", "reshard", "mesh_cast"})
_OWN_SHARDINGS = ("sharding", "out_sharding")  # parameters by which operations say the same


@dataclass(frozen=True, slots=True)
class Context:
    """What an equation inherits from the calls and loops around it.

    `transform` is the outermost derivative transform: `transpose` for the backward pass,
    `jvp` for the forward pass under autodiff, empty outside autodiff.
    """

    transform: str = ""
    recomputed: bool = False
    loop: int | None = None
    calls: tuple[Any, ...] = ()


@dataclass(slots=True)
class Inliner:
    """Collects the flat graph. `after_gradient` holds the values that depend on a gradient."""

    equations: list[Equation] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
    outside_autodiff: set[int] = field(default_factory=set)
    after_gradient: set[int] = field(default_factory=set)
    own_constraints: int = 0
    _ops: dict[Any, Op] = field(default_factory=dict)
    _transforms: dict[Any, str] = field(default_factory=dict)
    _literals: dict[Any, int] = field(default_factory=dict)
    _stacked: list[set[int]] = field(default_factory=list)  # per loop, what it slices and stacks

    def value(self, aval: Any, producer: int | None) -> int:
        index = len(self.values)
        shape = tuple(int(size) for size in aval.shape)
        self.values.append(Value(index, shape, aval.dtype, producer))
        return index

    def constant(self, array: Any, aval: Any) -> int:
        index = self.value(aval, None)
        self.constants[index] = array
        return index

    def run(self, jaxpr: Any, env: dict[Any, int], context: Context) -> list[int]:
        """Inlines an open jaxpr whose inputs are bound in `env`; returns its outputs' values."""
        for eqn in jaxpr.eqns:
            inputs = [self._read(env, atom) for atom in eqn.invars]
            inner = self._enter(context, eqn.source_info.name_stack)
            name = eqn.primitive.name
            if name in CALLS:
                outputs = self._call(eqn, inputs, inner)
            elif name in PLACEMENTS:
                outputs = inputs
                self.own_constraints += name == "sharding_constraint"
            elif name == "scan" and self._spliceable(eqn, inputs, inner):
                outputs = self._splice(eqn, inputs, inner)
            else:
                outputs = self._emit(eqn, inputs, inner)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [self._read(env, atom) for atom in jaxpr.outvars]

    def _read(self, env: Mapping[Any, int], atom: Any) -> int:
        if not isinstance(atom, jex.Literal):
            return env[atom]
        key = (np.asarray(atom.val).tobytes(), atom.aval)  # bytes tell 0.0 from -0.0
        index = self._literals.get(key)
        if index is None:
            index = self._literals[key] = self.constant(atom.val, atom.aval)
        return index

    def _enter(self, context: Context, name_stack: Any) -> Context:
        if context.transform:
            return context
        transform = self._transforms.get(name_stack)
        if transform is None:
            transform = self._transforms[name_stack] = _first_transform(name_stack)
        return replace(context, transform=transform) if transform else context

    def _op(self, eqn: Any, inputs: Sequence[int]) -> Op:
        in_shapes = tuple(self.values[i].shape for i in inputs)
        in_dtypes = tuple(self.values[i].dtype for i in inputs)
        said = [name for name in _OWN_SHARDINGS if eqn.params.get(name) is not None]
        params = {**eqn.params, **dict.fromkeys(said)} if said else eqn.params
        key: Any = (eqn.primitive.name, in_shapes, in_dtypes, *params.values())
        try:
            op = self._ops.get(key)
        except TypeError:  # a parameter that cannot be hashed: this equation's Op is its own
            key, op = ("its own", len(self._ops)), None
        if op is None:
            out_shapes = tuple(tuple(map(int, var.aval.shape)) for var in eqn.outvars)
            op = self._ops[key] = Op(
                primitive=eqn.primitive.name,
                params=params,
                in_shapes=in_shapes,
                out_shapes=out_shapes,
                out_dtypes=tuple(var.aval.dtype for var in eqn.outvars),
                map=op_map(eqn.primitive.name, params, in_shapes, out_shapes),
                primitive_object=eqn.primitive,
            )
        return op

    def _emit(self, eqn: Any, inputs: Sequence[int], context: Context) -> list[int]:
        avals = [var.aval for var in eqn.outvars]
        return self._append(self._op(eqn, inputs), inputs, avals, context, eqn)

    def _append(
        self,
        op: Op,
        inputs: Sequence[int],
        avals: Sequence[Any],
        context: Context,
        origin: Any,
    ) -> list[int]:
        index = len(self.equations)
        outputs = [self.value(aval, index) for aval in avals]
        role = Role.BACKWARD if context.transform == "transpose" else Role.FORWARD
        late = not self.after_gradient.isdisjoint(inputs)
        if late and not context.transform:
            # inside a loop the optimizer's pass has not begun: this accumulates gradients
            role = Role.UPDATE if context.loop is None else Role.BACKWARD
        if not context.transform:
            self.outside_autodiff.add(index)
        if late or role is Role.BACKWARD:
            self.after_gradient.update(outputs)
        self.equations.append(
            Equation(
                index,
                op,
                tuple(inputs),
                tuple(outputs),
                role,
                context.loop,
                context.recomputed,
                origin,
                context.calls,
            )
        )
        return outputs

    def _call(self, eqn: Any, inputs: list[int], context: Context) -> list[int]:
        callee = eqn.params[CALLS[eqn.primitive.name]]
        context = replace(context, calls=(*context.calls, eqn))
        if eqn.params.get("differentiated"):
            context = replace(context, recomputed=True)
            inputs = self._barrier(eqn, inputs, context)
        return self._body(callee, inputs, context)

    def _body(self, callee: Any, inputs: Sequence[int], context: Context) -> list[int]:
        """Inlines an open or closed jaxpr on `inputs`; returns its outputs' values."""
        jaxpr = getattr(callee, "jaxpr", callee)
        env = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, array in zip(jaxpr.constvars, getattr(callee, "consts", ()), strict=True):
            env[var] = self.constant(array, var.aval)
        return self.run(jaxpr, env, context)

    def _barrier(self, eqn: Any, inputs: list[int], context: Context) -> list[int]:
        prevent_cse = eqn.params.get("prevent_cse", True)
        wanted = prevent_cse if isinstance(prevent_cse, tuple) else [prevent_cse] * len(inputs)
        held = [i for i, on in enumerate(wanted) if on and inputs[i] not in self.constants]
        if not held:
            return inputs
        operands = [inputs[i] for i in held]
        avals = [eqn.invars[i].aval for i in held]
        op = self._plain_op("optimization_barrier", operands, avals, {})
        op = replace(op, primitive_object=jax.lax.optimization_barrier_p)
        passed = list(inputs)
        results = self._append(op, operands, avals, context, eqn)
        for i, output in zip(held, results, strict=True):
            passed[i] = output
        return passed

    def _plain_op(
        self, name: str, inputs: Sequence[int], avals: Sequence[Any], params: Mapping[str, Any]
    ) -> Op:
        in_shapes = tuple(self.values[i].shape for i in inputs)
        out_shapes = tuple(tuple(map(int, aval.shape)) for aval in avals)
        dtypes = tuple(aval.dtype for aval in avals)
        key = (name, in_shapes, out_shapes, dtypes, *params.values())
        op = self._ops.get(key)
        if op is None:
            mapping = op_map(name, params, in_shapes, out_shapes)
            op = self._ops[key] = Op(name, params, in_shapes, out_shapes, dtypes, mapping, None)
        return op

    # --- loops ---------------------------------------------------------------------------

    def _spliceable(self, eqn: Any, inputs: Sequence[int], context: Context) -> bool:
        """Returns whether a scan becomes a loop: its body contracts, and it is not part of the
        update."""
        in_update = not context.transform and not self.after_gradient.isdisjoint(inputs)
        if in_update or eqn.params["length"] < 1 or not _contracts(eqn.params["jaxpr"]):
            return False
        return context.transform != "transpose" or self._twin(eqn, inputs, context) is not None

    def _twin(self, eqn: Any, inputs: Sequence[int], context: Context) -> int | None:
        """Returns the latest forward loop whose stacked tensors a backward scan walks in
        reverse."""
        start = sum(_scan_arity(eqn))
        for loop in reversed(self.loops):
            fits = loop.length == eqn.params["length"] and loop.parent == context.loop
            reverses = loop.role is Role.FORWARD and loop.reverse != eqn.params["reverse"]
            if fits and reverses and not self._stacked[loop.index].isdisjoint(inputs[start:]):
                return loop.index
        return None

    def _splice(self, eqn: Any, inputs: Sequence[int], context: Context) -> list[int]:
        params = eqn.params
        consts, carry = _scan_arity(eqn)
        index = len(self.loops)
        role = Role.BACKWARD if context.transform == "transpose" else Role.FORWARD
        twin = self._twin(eqn, inputs, context) if role is Role.BACKWARD else None
        length, reverse = params["length"], params["reverse"]
        loop = Loop(index, context.loop, length, reverse, role, (), twin)
        self.loops.append(loop)
        self._stacked.append(set())
        inside = replace(context, loop=index)
        body = params["jaxpr"]
        jaxpr = getattr(body, "jaxpr", body)

        def pseudo(name: str, value: int, aval: Any) -> int:
            op = self._plain_op(name, [value], [aval], {"length": length})
            return self._append(op, [value], [aval], inside, eqn)[0]

        bound = list(inputs[:consts])
        enters: list[int] = []
        for value, var in zip(
            inputs[consts : consts + carry], jaxpr.invars[consts : consts + carry], strict=True
        ):
            enters.append(len(self.equations))
            bound.append(pseudo(LOOP_ENTER, value, var.aval))
        for value, var in zip(
            inputs[consts + carry :], jaxpr.invars[consts + carry :], strict=True
        ):
            bound.append(pseudo(LOOP_SLICE, value, var.aval))
        results = self._body(body, bound, inside)

        outputs: list[int] = []
        exits: list[int] = []
        for value, outer in zip(results[:carry], eqn.outvars[:carry], strict=True):
            exits.append(len(self.equations))
            outputs.append(pseudo(LOOP_EXIT, value, outer.aval))
        for value, outer in zip(results[carry:], eqn.outvars[carry:], strict=True):
            outputs.append(pseudo(LOOP_STACK, value, outer.aval))
        carries = tuple(zip(enters, exits, strict=True))
        self.loops[index] = replace(loop, carries=carries)
        self._stacked[index] = {*inputs[consts + carry :], *outputs[carry:]}
        return outputs


def _scan_arity(eqn: Any) -> tuple[int, int]:
    """Returns how many of a scan's operands are constants and how many are carries."""
    if "num_carry" in eqn.params:  # JAX 0.10
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()  # JAX 0.11
    return len(list(consts)), len(list(carry))


def _first_transform(name_stack: Any) -> str:
    """Returns `jvp` or `transpose`, whichever is outermost in JAX's name stack, or nothing."""
    for element in name_stack.stack:
        if isinstance(element, Transform) and element.name in ("jvp", "transpose"):
            return element.name
    return ""


def _contracts(callee: Any) -> bool:
    jaxpr = getattr(callee, "jaxpr", callee)
    return any(
        eqn.primitive.name in CONTRACTIONS
        or any(_contracts(sub) for sub in jex.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )
