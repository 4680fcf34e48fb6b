"""Steps that call back to the host: what is for debugging, and what the step needs.

What `jax.debug` does (prints, callbacks, looks at shardings) has no results, so a step computes the
same without it. A program with a callback cannot be sent to another process, so measured programs
are without. Other callbacks (`pure_callback`, `io_callback`) are part of what the step computes.
Either kind may also be inside control flow that the graph keeps whole.

    kept        as in the step, for one device
    unordered   the same, but in any order: JAX orders effects on one device alone
    left out    for programs that are measured
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from jax._src import debugging
from jax.extend import core as jex

from cfp.trace.graph import Equation, Graph

DEBUG = frozenset({"debug_callback", "debug_print", "inspect_sharding"})
NEEDED = frozenset({"pure_callback", "io_callback"})
Debug = Literal["kept", "unordered", "left out"]
_EFFECTS = (debugging.debug_effect, debugging.ordered_debug_effect)


def only_for_debugging(graph: Graph) -> frozenset[int]:
    """Returns the equations that a step computes the same without: those that debug, and those
    whose results none but these read."""
    found: set[int] = set()
    for equation in reversed(graph.equations):
        read = [e for value in equation.outputs for e in graph.readers[value]]
        returned = not graph.returned.isdisjoint(equation.outputs)
        served = read and not returned and found.issuperset(read)
        if equation.primitive in DEBUG or served:
            found.add(equation.index)
    return frozenset(found)


def needed_callbacks(graph: Graph) -> Iterator[Equation]:
    """Yields the callbacks that the step needs, as equations that name their primitive and source
    line."""
    for equation in graph.equations:
        if equation.primitive in NEEDED:
            yield equation
        yield from _inside(equation, equation.op.params)


def _inside(equation: Equation, params: Mapping[str, Any]) -> Iterator[Equation]:
    for jaxpr in jex.jaxprs_in_params(params):
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            at = replace(
                equation,
                op=replace(equation.op, primitive=name, params=eqn.params),
                origin=eqn,
                calls=(*equation.calls, equation.origin),
            )
            if name in NEEDED:
                yield at
            yield from _inside(at, eqn.params)


def debug_params(primitive: str, params: Mapping[str, Any], debug: Debug) -> Mapping[str, Any]:
    """Returns the parameters to bind a primitive with, where debugging is done as `debug` says."""
    if debug == "kept":
        return params
    if primitive in DEBUG:
        changed = dict(params)
        if params.get("ordered"):  # a print
            changed["ordered"] = False
        if params.get("effect") is debugging.ordered_debug_effect:  # another callback
            changed["effect"] = debugging.debug_effect
    else:
        changed = {name: _changed(value, debug) for name, value in params.items()}
    same = all(changed[name] is value for name, value in params.items())
    return params if same else changed


def _changed(value: Any, debug: Debug) -> Any:
    """Returns a parameter with its jaxprs changed, or the very same one where nothing changes."""
    if isinstance(value, tuple):
        parts = tuple(_changed(part, debug) for part in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    if isinstance(value, jex.ClosedJaxpr):
        jaxpr = _changed_jaxpr(value.jaxpr, debug)
        closed: Any = value
        return value if jaxpr is value.jaxpr else closed.replace(jaxpr=jaxpr)
    return _changed_jaxpr(value, debug) if isinstance(value, jex.Jaxpr) else value


def _changed_jaxpr(jaxpr: Any, debug: Debug) -> Any:
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in DEBUG and debug == "left out":
            continue
        params = debug_params(eqn.primitive.name, eqn.params, debug)
        same = params is eqn.params
        eqns.append(eqn if same else eqn.replace(params=params, effects=_effects(eqn, debug)))
    if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=eqns, effects=_effects(jaxpr, debug))


def _effects(of: Any, debug: Debug) -> set[Any]:
    others = {effect for effect in of.effects if effect not in _EFFECTS}
    debugs = len(others) < len(of.effects) and debug != "left out"
    return others | {debugging.debug_effect} if debugs else others
