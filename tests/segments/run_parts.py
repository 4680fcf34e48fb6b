"""Runs the parts one after another on one device: the proof that the cut is right.

Each part sees only its declared inputs and hands on only its declared outputs. Parts that
share a loop run inside it together, iteration by iteration, each seeing only what it declares
there; what they have outside the loop runs before it or after it, as it depends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from cfp.segments.build import cut_part
from cfp.segments.segment import Part
from cfp.trace import LOOP_ENTER, LOOP_EXIT, LOOP_PRIMITIVES, LOOP_SLICE, LOOP_STACK, Graph
from cfp.trace.evaluate import run_straight

Env = dict[int, Any]


def run_parts(graph: Graph, parts: Iterable[Part], inputs: Sequence[Any]) -> list[Any]:
    """The step's flat outputs from its flat inputs, computed part by part."""
    env: Env = {**graph.constants, **dict(zip(graph.inputs, inputs, strict=True))}
    _run(graph, list(parts), env, depth=0)
    return [env[value] for value in graph.outputs]


def _run(graph: Graph, parts: list[Part], env: Env, depth: int) -> None:
    at = 0
    while at < len(parts):
        loop = next(
            (
                path[depth]
                for e in parts[at].equations
                if len(path := graph.loop_path(graph.equations[e].loop)) > depth
            ),
            None,
        )
        if loop is None:
            _run_straight(graph, parts[at], env)
            at += 1
            continue
        stop = at + 1
        while stop < len(parts) and _in_loop(graph, parts[stop], loop):
            stop += 1
        _run_around(graph, parts[at:stop], loop, env, depth)
        at = stop


def _run_straight(graph: Graph, part: Part, env: Env) -> None:
    local: Env = {**graph.constants, **{value: env[value] for value in part.inputs}}
    run_straight((graph.equations[e] for e in part.equations), local)
    env.update({value: local[value] for value in part.outputs})


def _in_loop(graph: Graph, part: Part, loop: int) -> list[int]:
    return [e for e in part.equations if loop in graph.loop_path(graph.equations[e].loop)]


def _run_around(graph: Graph, parts: list[Part], loop: int, env: Env, depth: int) -> None:
    """Runs a loop and what its parts do outside it."""
    inside = {e for part in parts for e in _in_loop(graph, part, loop)}
    made = {value for e in inside for value in graph.equations[e].outputs}
    before: list[int] = []
    after: list[int] = []
    for e in sorted(e for part in parts for e in part.equations if e not in inside):
        equation = graph.equations[e]
        if made.isdisjoint(equation.inputs):
            before.append(e)
        else:
            after.append(e)
            made.update(equation.outputs)
    run_straight((graph.equations[e] for e in before), env)
    _run_loop(graph, parts, loop, env, depth)
    run_straight((graph.equations[e] for e in after), env)


def _run_loop(graph: Graph, parts: list[Part], loop: int, env: Env, depth: int) -> None:
    own: dict[str, list[int]] = {primitive: [] for primitive in LOOP_PRIMITIVES}
    bodies: list[Part] = []
    for part in parts:
        body: list[int] = []
        for e in _in_loop(graph, part, loop):
            equation = graph.equations[e]
            if equation.loop == loop and equation.primitive in LOOP_PRIMITIVES:
                own[equation.primitive].append(e)
            else:
                body.append(e)
        bodies.append(cut_part(graph, part.segment, part.phase, body))
    record = graph.loops[loop]
    ends = {exit_: enter for enter, exit_ in record.carries}

    def edge(e: int) -> tuple[int, int]:
        return graph.equations[e].inputs[0], graph.equations[e].outputs[0]

    for outer, inner in map(edge, own[LOOP_ENTER]):
        env[inner] = env[outer]
    stacks: dict[int, list[Any]] = {e: [] for e in own[LOOP_STACK]}
    for trip in range(record.length):
        index = record.length - 1 - trip if record.reverse else trip
        for outer, inner in map(edge, own[LOOP_SLICE]):
            env[inner] = env[outer][index]
        _run(graph, bodies, env, depth + 1)
        for e, rows in stacks.items():
            rows.append(env[edge(e)[0]])
        final = {e: env[edge(e)[0]] for e in own[LOOP_EXIT]}
        for e, value in final.items():
            env[edge(ends[e])[1]] = value
            env[edge(e)[1]] = value
    for e, rows in stacks.items():
        env[edge(e)[1]] = jnp.stack(rows[::-1] if record.reverse else rows)
