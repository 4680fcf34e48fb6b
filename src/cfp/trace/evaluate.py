"""Runs equations of a `Graph`, one primitive after another.

Under `jax.jit` this rebuilds a program; called on arrays it computes op by op, so the same
equations give the same bits however they are grouped. `rebuild` runs a whole graph, its loops as
the `lax.scan` they came from, and lets the caller touch every tensor on its way. What the backward
pass computes again (`cfp.trace.recomputation`) runs where it is read first. Each equation runs
under a name of its own, `cfp[12]`, which a compiler carries along: what it makes of the equation
can be told from its output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, Protocol

import jax
from jax._src import source_info_util

from cfp.trace.callbacks import DEBUG, Debug, debug_params
from cfp.trace.graph import (
    LOOP_ENTER,
    LOOP_PRIMITIVES,
    LOOP_SLICE,
    LOOP_STACK,
    Equation,
    Graph,
    Role,
)
from cfp.trace.recomputation import Held, Operand, Recomputation, redirect

Env = dict[Any, Any]  # arrays by value; `_Rebuild` has names for what is no value

_SCOPE = re.compile(r"cfp\[(\d+)\]")


class Touch(Protocol):
    """What happens to tensors on their way through `rebuild`."""

    def value(self, value: int, array: Any) -> Any:
        """Returns what a tensor becomes where it is made."""
        ...

    def operand(self, equation: int, operand: int, array: Any) -> Any:
        """Returns what a tensor becomes where an equation reads it."""
        ...

    def entry(self, equation: int, operand: int) -> int | None:
        """Returns a number that operands share if they are one tensor, which enters a part of the
        step there; None for any other operand."""
        ...

    def enter(self, equation: int, operand: int, array: Any) -> Any:
        """Returns what a tensor becomes on its way in, once for all operands of one number."""
        ...

    def fence(
        self,
        held: Sequence[tuple[Held, Any]],
        after: tuple[Operand, int, Any] | None,
        handed_on: Sequence[tuple[int, Any]],
    ) -> list[Any]:
        """Returns the tensors that something is computed again from, such that a compiler neither
        takes what was computed before for it, nor computes it before the tensor `after` is there
        (an operand, its value and the array), and what is `handed_on` (values and arrays)."""
        ...


def bind(equation: Equation, operands: Iterable[Any], debug: Debug = "kept") -> list[Any]:
    """Applies the equation's primitive. Loop pseudo-operations are not for this function.

    The equation brings its context along, but for the mesh: that is the plan's.
    """
    if debug == "left out" and equation.primitive in DEBUG:
        return []
    primitive = equation.op.primitive_object
    mesh = jax.sharding.get_abstract_mesh()
    with equation.origin.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        params = debug_params(equation.primitive, equation.op.params, debug)
        results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return list(results) if primitive.multiple_results else [results]


def run_straight(equations: Iterable[Equation], env: MutableMapping[int, Any]) -> None:
    """Runs equations outside loops in order, reading and writing `env` by value index."""
    for equation in equations:
        results = bind(equation, (env[value] for value in equation.inputs))
        env.update(zip(equation.outputs, results, strict=True))


def equations_of(op_name: str) -> list[int]:
    """Returns the equations that a compiler's operation name stems from, innermost first."""
    return [int(index) for index in reversed(_SCOPE.findall(op_name))]


def rebuild(
    graph: Graph,
    inputs: Sequence[Any],
    touch: Touch,
    debug: Debug = "kept",
    again: Sequence[Recomputation] = (),
) -> list[Any]:
    """Returns the step's flat outputs from its flat inputs and shows every tensor to `touch`.
    `cfp.trace.callbacks` says what `debug` may be; `again` is what is computed again."""
    env: Env = {**graph.constants, **dict(zip(graph.inputs, inputs, strict=True))}
    _Rebuild(graph, touch, debug, again).run(range(len(graph.equations)), None, env)
    return [env[value] for value in graph.outputs]


class _Rebuild:
    """Besides values, `env` has what entered a part, under -1 - its number; what group g computed
    again, under ("again", g); and stacks that are not in the graph, under ("stack", value). A
    loop's body has its own."""

    def __init__(
        self, graph: Graph, touch: Touch, debug: Debug, again: Sequence[Recomputation]
    ) -> None:
        self.graph = graph
        self.touch = touch
        self.debug = debug
        self.redirects = redirect(graph, again)

    def run(self, span: range, loop: int | None, env: Env) -> None:
        """Runs the equations of `span`; those in deeper loops than `loop` come in runs."""
        at = span.start
        while at < span.stop:
            inner = self._below(at, loop)
            if inner is None:
                if self.redirects.runs(at):
                    self._apply(self.graph.equations[at], env)
                at += 1
                continue
            stop = at
            while stop < span.stop and self._below(stop, loop) == inner:
                stop += 1
            self._scan(inner, range(at, stop), env)
            at = stop

    def _below(self, equation: int, loop: int | None) -> int | None:
        """Returns the loop right inside `loop` that an equation is in."""
        path = self.graph.loop_path(self.graph.equations[equation].loop)
        depth = 0 if loop is None else len(self.graph.loop_path(loop))
        return path[depth] if len(path) > depth else None

    def _apply(self, equation: Equation, env: Env) -> None:
        source = equation.origin.source_info
        stack = source_info_util.current_name_stack() + source.name_stack
        with (
            source_info_util.user_context(source.traceback, name_stack=stack),
            jax.named_scope(f"cfp[{equation.index}]"),
        ):
            operands = [self._operand(equation, i, env) for i in range(len(equation.inputs))]
            for value, array in zip(
                equation.outputs, bind(equation, operands, self.debug), strict=True
            ):
                env[value] = self.touch.value(value, array)

    def _scan(self, loop: int, span: range, env: Env) -> None:
        """Runs one loop; `span` are its equations: entries, body, exits."""
        record = self.graph.loops[loop]
        own: dict[str, list[Equation]] = {primitive: [] for primitive in LOOP_PRIMITIVES}
        body: list[int] = []
        for index in span:
            equation = self.graph.equations[index]
            if equation.loop == loop and equation.primitive in LOOP_PRIMITIVES:
                if self.redirects.runs(index):
                    own[equation.primitive].append(equation)
            else:
                body.append(index)
        exits = [self.graph.equations[exit_] for _, exit_ in record.carries]
        inside = range(body[0], body[-1] + 1) if body else range(0)
        more = self.redirects.stacks.get(loop, [])
        held = self._held(loop, env)

        def turn(carry: Any, slices: Any) -> tuple[Any, Any]:
            local = dict(env)
            given = slices[: len(own[LOOP_SLICE])]
            for equations, arrays in ((own[LOOP_ENTER], carry), (own[LOOP_SLICE], given)):
                for equation, array in zip(equations, arrays, strict=True):
                    (value,) = equation.outputs
                    local[value] = self._named(equation, value, array)
            for value, array in zip(held, slices[len(given) :], strict=True):
                maker = self.graph.equations[self.graph.values[value].producer or 0]
                local[value] = self._named(maker, value, array)
            self.run(inside, loop, local)
            stacked = [self._given(equation, local) for equation in own[LOOP_STACK]]
            return (
                tuple(self._given(equation, local) for equation in exits),
                (*stacked, *(local[value] for value in more)),
            )

        results = jax.lax.scan(
            turn,
            tuple(self._given(equation, env) for equation in own[LOOP_ENTER]),
            (*(self._given(equation, env) for equation in own[LOOP_SLICE]), *held.values()),
            length=record.length,
            reverse=record.reverse,
            unroll=self.graph.equations[span.start].origin.params["unroll"],
        )
        last, stacks = results
        for value, array in zip(more, stacks[len(own[LOOP_STACK]) :], strict=True):
            env["stack", value] = array
        for equation, array in zip((*exits, *own[LOOP_STACK]), (*last, *stacks), strict=False):
            (value,) = equation.outputs
            env[value] = self._named(equation, value, array)

    def _held(self, loop: int, env: Env) -> Env:
        """Returns the stacks that a backward loop reads of what the forward loop keeps for it."""
        slices = self.redirects.slices.get(loop, {})
        return {
            value: env["stack", value] if stack is None else env[stack]
            for value, stack in slices.items()
        }

    def _again(self, number: int, env: Env) -> Env:
        """Returns what a group of equations reads and makes when it is computed again: on the first
        call it is."""
        group = self.redirects.groups[number]
        if not group.again:
            return env
        if ("again", number) not in env:
            held = [(one, self._entered(*one.operand, one.value, env)) for one in group.held]
            after = self._after(group.after, env)
            handed_on = [] if after is None else self._handed_on(after[1], env)
            fenced = self.touch.fence(held, after, handed_on)
            local = dict(env)
            for operand in group.readers:
                entry = self.touch.entry(*operand)
                if entry is not None:
                    local.pop(-1 - entry, None)  # it entered before the fence
            for (one, _), array in zip(held, fenced, strict=True):
                local[one.value] = array
                entry = self.touch.entry(*one.operand)
                if entry is not None:
                    local[-1 - entry] = array
            for equation in group.again:
                self._apply(equation, local)
            env["again", number] = local
        again: Env = env["again", number]
        return again

    def _after(self, operand: Operand | None, env: Env) -> tuple[Operand, int, Any] | None:
        if operand is None:
            return None
        value = self.graph.equations[operand[0]].inputs[operand[1]]
        return (operand, value, self._entered(*operand, value, env)) if value in env else None

    def _handed_on(self, after: int, env: Env) -> list[tuple[int, Any]]:
        """Returns what the forward pass of a segment hands on, where its cotangent is an argument:
        in the step that cannot be there before, and what is computed again is not there beside what
        the forward pass needs."""
        if self.graph.values[after].producer is not None:
            return []
        made = {value for equation in self.graph.role(Role.FORWARD) for value in equation.outputs}
        return [(v, env[v]) for v in dict.fromkeys(self.graph.outputs) if v in made and v in env]

    def _given(self, equation: Equation, env: Env) -> Any:
        with jax.named_scope(f"cfp[{equation.index}]"):
            return self._operand(equation, 0, env)

    def _operand(self, equation: Equation, operand: int, env: Env) -> Any:
        value, at = equation.inputs[operand], (equation.index, operand)
        if at in self.redirects.reads:
            group, value = self.redirects.reads[at]
            env = self._again(group, env)
        return self.touch.operand(*at, self._entered(*at, value, env))

    def _entered(self, equation: int, operand: int, value: int, env: Env) -> Any:
        """Returns a value as an operand reads it, on its way in if it enters a part there. What has
        entered is kept in `env` under -1 - its number: a loop's body has an `env` of its own."""
        number = self.touch.entry(equation, operand)
        if number is None:
            return env[value]
        if -1 - number not in env:
            env[-1 - number] = self.touch.enter(equation, operand, env[value])
        return env[-1 - number]

    def _named(self, equation: Equation, value: int, array: Any) -> Any:
        with jax.named_scope(f"cfp[{equation.index}]"):
            return self.touch.value(value, array)
