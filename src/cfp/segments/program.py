"""A segment as programs that can be compiled, run and measured on their own.

A segment's forward, backward and update parts make one program, with the incoming activation and
cotangent among its inputs. Where a loop is involved, what happens at different rates is kept
apart: one iteration of the body (`times` its trips), and what runs once per step (the update of
the stacked parameters). In an iteration, what the forward loop stacks and the backward loop
slices is the same tensor, so the two passes meet as they do in a step. What follows from constants
alone (masks, position tables) is computed inside, wherever the step first computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cfp.blocks import Blocks
from cfp.segments.edges import edges
from cfp.segments.segment import Segments
from cfp.trace import LOOP_PRIMITIVES, Graph
from cfp.trace.evaluate import run_straight


@dataclass(frozen=True, slots=True)
class Program:
    """Equations in order with the tensors that enter and leave, happening `times` per step."""

    segment: int
    times: int
    equations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: Mapping[int, int]  # backward slice -> the forward tensor it is

    def run(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """Computes `outputs`; made to be traced: `jax.jit(lambda *x: program.run(graph, x))`."""
        env: dict[int, Any] = {**graph.constants, **dict(zip(self.inputs, inputs, strict=True))}
        for equation in (graph.equations[e] for e in self.equations):
            for value in equation.inputs:
                if value not in env:
                    env[value] = env[self.aliases[value]]
            run_straight((equation,), env)
        return [env[value] for value in self.outputs]

    def show(self, graph: Graph) -> str:
        lines = [f"segment {self.segment}, {self.times} times: {len(self.equations)} equations"]
        lines += [f"  in  {graph.describe(value)}" for value in self.inputs]
        lines += [f"  out {graph.describe(value)}" for value in self.outputs]
        return "\n".join(lines)


def segment_programs(
    graph: Graph, blocks: Blocks, segments: Segments, segment: int
) -> tuple[Program, ...]:
    """The programs of one segment, innermost loop first; a single one outside loops."""
    by_rate: dict[int | None, list[int]] = {}
    for part in segments.parts:
        if part.segment != segment:
            continue
        for e in part.equations:
            equation = graph.equations[e]
            if equation.primitive not in LOOP_PRIMITIVES:
                by_rate.setdefault(_forward_loop(graph, equation.loop), []).append(e)
    depth = {loop: len(graph.loop_path(loop)) for loop in by_rate}
    fixed = _from_constants(graph)
    return tuple(
        _program(graph, blocks, segment, graph.trips(loop), _with(graph, by_rate[loop], fixed))
        for loop in sorted(by_rate, key=lambda loop: (-depth[loop], loop or 0))
    )


def _from_constants(graph: Graph) -> set[int]:
    """Equations whose results depend on no argument."""
    varying = set(graph.inputs)
    fixed: set[int] = set()
    for equation in graph.equations:
        if equation.primitive in LOOP_PRIMITIVES or not varying.isdisjoint(equation.inputs):
            varying.update(equation.outputs)
        else:
            fixed.add(equation.index)
    return fixed


def _with(graph: Graph, equations: list[int], fixed: set[int]) -> list[int]:
    """The equations and those of `fixed` that they need, in order."""
    needed = set(equations)
    todo = list(equations)
    while todo:
        for value in graph.equations[todo.pop()].inputs:
            producer = graph.values[value].producer
            if producer is not None and producer in fixed and producer not in needed:
                needed.add(producer)
                todo.append(producer)
    return sorted(needed)


def _forward_loop(graph: Graph, loop: int | None) -> int | None:
    if loop is None:
        return None
    twin = graph.loops[loop].twin
    return loop if twin is None else twin


def _program(
    graph: Graph, blocks: Blocks, segment: int, times: int, equations: list[int]
) -> Program:
    outer, outputs = edges(graph, equations)
    inner = {
        v for e in equations for v in (*graph.equations[e].inputs, *graph.equations[e].outputs)
    }
    same = blocks.recomputed.same
    aliases = {
        value: same[value]
        for value in outer
        if _is_slice(graph, value) and same.get(value) in inner
    }
    return Program(
        segment=segment,
        times=times,
        equations=tuple(equations),
        inputs=tuple(value for value in outer if value not in aliases),
        outputs=outputs,
        aliases=aliases,
    )


def _is_slice(graph: Graph, value: int) -> bool:
    producer = graph.values[value].producer
    return producer is not None and graph.equations[producer].primitive in LOOP_PRIMITIVES
