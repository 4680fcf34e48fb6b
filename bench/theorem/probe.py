"""The gap of one step: the best plan of the blocks' space against the best of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.theorem.problem import Problem
from bench.theorem.solve import Solution, solve
from bench.theorem.spaces import Rules, build_problem
from cfp.blocks import build_blocks
from cfp.trace import trace


@dataclass(frozen=True, slots=True)
class Gap:
    """Both optima, in units of (P-1)/P^2 bytes per device."""

    problem: Problem
    operators: Solution
    blocks: Solution

    @property
    def units(self) -> int:
        return self.blocks.units - self.operators.units

    @property
    def moved_bytes(self) -> float:
        """Returns what a device sends more in the blocks' best plan."""
        parts = self.problem.parts
        return self.units * (parts - 1) / parts**2

    def show(self) -> str:
        """Returns the nodes whose ways differ, and the prices."""
        lines = [f"operators {self.operators.units}, blocks {self.blocks.units} units"]
        pairs = zip(self.operators.assignment, self.blocks.assignment, strict=True)
        for node, (a, b) in zip(self.problem.nodes, pairs, strict=True):
            mark = " " if a == b else "*"
            reads = " ".join(f"%{v}" for v in node.inputs)
            makes = " ".join(f"%{v}" for v in node.outputs)
            lines.append(f"{mark} {makes} = {node.name} {reads}")
            for label, way in (("operators", node.ways[a]), ("blocks", node.ways[b])):
                if mark == "*" or label == "operators":
                    done = " (partial)" if way.partial else ""
                    lines.append(f"      {label}: {way.operands} -> {way.results}{done}")
        return "\n".join(lines)


def gap(
    step: Callable[..., Any], args: tuple[Any, ...], parts: int, rules: Rules | None = None
) -> Gap:
    """Traces a step, blocks it for `parts` devices and solves both spaces."""
    graph = trace(step, *args)
    problem = build_problem(graph, build_blocks(graph, (parts,)), parts, rules or Rules())
    return solve_gap(problem)


def solve_gap(problem: Problem) -> Gap:
    return Gap(problem, solve(problem, blocks=False), solve(problem, blocks=True))
