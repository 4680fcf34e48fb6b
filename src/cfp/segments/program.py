"""A segment as programs that can be compiled, run and measured on their own.

A segment's forward, backward and update parts make one program, with the incoming activation and
cotangent among its inputs. Where a loop is involved, what happens at different rates is kept
apart: one iteration of the body, and what runs once per step (the update of the
stacked parameters). In an iteration, what the forward loop stacks and the backward loop
slices is the same tensor, so the two passes meet as they do in a step. What follows from constants
alone (masks, position tables) is computed inside each that needs it; PRNG keys enter as such. What
`jax.debug` prints, and what is computed for that alone, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cfp.blocks import Blocks
from cfp.segments.edges import edges
from cfp.segments.segment import Segments
from cfp.trace import LOOP_PRIMITIVES, Graph, is_key
from cfp.trace.callbacks import only_for_debugging
from cfp.trace.evaluate import run_straight


@dataclass(frozen=True, slots=True)
class Program:
    """Equations in order with the tensors that enter and leave, happening `times` per step."""

    segments: tuple[int, ...]
    times: int
    loop: int | None  # the innermost forward loop around it
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
        of = ", ".join(map(str, self.segments))
        lines = [f"segment {of}, {self.times} times: {len(self.equations)} equations"]
        lines += [f"  in  {graph.describe(value)}" for value in self.inputs]
        lines += [f"  out {graph.describe(value)}" for value in self.outputs]
        return "\n".join(lines)


class Cutter:
    """Cuts many segments out of one step."""

    def __init__(self, graph: Graph, blocks: Blocks, segments: Segments) -> None:
        self.graph = graph
        self.blocks = blocks
        self._fixed = _from_constants(graph)
        self._debug = only_for_debugging(graph)
        left_out = self._fixed | _of_keys(graph) | self._debug
        self._own: dict[int, list[int]] = {}
        self._all: dict[int, set[int]] = {}
        for part in segments.parts:
            if part.segment is not None:
                self._all.setdefault(part.segment, set()).update(part.equations)
                self._own.setdefault(part.segment, []).extend(
                    e
                    for e in part.equations
                    if graph.equations[e].primitive not in LOOP_PRIMITIVES and e not in left_out
                )

    def programs(self, *indices: int) -> tuple[Program, ...]:
        """Returns the programs of one segment, or of several together: two neighbours show what the
        compiler does across their edge."""
        graph = self.graph
        by_rate: dict[int | None, list[int]] = {}
        for index in indices:
            for e in self._own[index]:
                by_rate.setdefault(forward_loop(graph, graph.equations[e].loop), []).append(e)
        depth = {loop: len(graph.loop_path(loop)) for loop in by_rate}
        return tuple(
            self._program(indices, loop, by_rate[loop])
            for loop in sorted(by_rate, key=lambda loop: (-depth[loop], loop or 0))
        )

    def equations(self, index: int) -> frozenset[int]:
        """Returns the equations of a segment, those that its loops are made of and those of its
        programs that several segments share."""
        shared = (e for program in self.programs(index) for e in program.equations)
        return frozenset(self._all[index].union(shared))

    def _program(self, segments: tuple[int, ...], loop: int | None, own: list[int]) -> Program:
        graph, fixed = self.graph, self._fixed
        equations = _with(graph, own, fixed)
        outer, made = edges(graph, equations, self._debug)
        inner = {
            v for e in equations for v in (*graph.equations[e].inputs, *graph.equations[e].outputs)
        }
        same = self.blocks.recomputed.same
        aliases = {
            value: same[value]
            for value in outer
            if _is_slice(graph, value) and same.get(value) in inner
        }
        return Program(
            segments=segments,
            times=graph.times(loop),
            loop=loop,
            equations=tuple(equations),
            inputs=tuple(value for value in outer if value not in aliases),
            outputs=tuple(value for value in made if graph.values[value].producer not in fixed),
            aliases=aliases,
        )


def _from_constants(graph: Graph) -> set[int]:
    """Returns the equations whose results depend on no argument, and are none of the step's."""
    varying = set(graph.inputs)
    fixed: set[int] = set()
    for equation in graph.equations:
        varies = not varying.isdisjoint(equation.inputs)
        returned = not graph.returned.isdisjoint(equation.outputs)
        if equation.primitive in LOOP_PRIMITIVES or varies or returned:
            varying.update(equation.outputs)
        else:
            fixed.add(equation.index)
    return fixed


def _of_keys(graph: Graph) -> set[int]:
    """Returns the equations that only derive PRNG keys: they are next to nothing, and differ in
    every depth of a model. Keys enter programs ready-made."""
    return {
        equation.index
        for equation in graph.equations
        if equation.outputs and all(is_key(graph.values[value].dtype) for value in equation.outputs)
    }


def _with(graph: Graph, equations: list[int], fixed: set[int]) -> list[int]:
    """Returns the equations and those of `fixed` that they need, in order."""
    needed = set(equations)
    todo = list(equations)
    while todo:
        for value in graph.equations[todo.pop()].inputs:
            producer = graph.values[value].producer
            if producer is not None and producer in fixed and producer not in needed:
                needed.add(producer)
                todo.append(producer)
    return sorted(needed)


def forward_loop(graph: Graph, loop: int | None) -> int | None:
    if loop is None:
        return None
    twin = graph.loops[loop].twin
    return loop if twin is None else twin


def _is_slice(graph: Graph, value: int) -> bool:
    producer = graph.values[value].producer
    return producer is not None and graph.equations[producer].primitive in LOOP_PRIMITIVES
